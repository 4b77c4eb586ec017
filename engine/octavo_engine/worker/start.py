"""From a configuration to a running loop: load, allocate, measure, check, serve."""

from __future__ import annotations

import dataclasses
import gc
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

from octavo_engine.core.config import CacheGroup, SchedulerConfig
from octavo_engine.core.lifecycle import Lifecycle
from octavo_engine.core.scheduler import create_scheduler
from octavo_engine.core.speculation import DraftSource, PromptLookup
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.messages import Embeddings, Loaded, Progress
from octavo_engine.ipc.vocabulary import read_vocabulary
from octavo_engine.worker.device import DEFAULT_MAX_NUM_SEQS, device_left, gpu_batched_tokens
from octavo_engine.worker.executable import Executable, OpenedAdapter
from octavo_engine.worker.executor import Executor
from octavo_engine.worker.grammar_compiler import GrammarCompiler
from octavo_engine.worker.guardian import Endpoint
from octavo_engine.worker.load import GiveUp, LoadedModel, Report, load_model
from octavo_engine.worker.loop import EngineLoop
from octavo_engine.worker.runners import MakeExecutor, prepare_executor
from octavo_engine.worker.sizing import (
    StartError,
    choose_blocks,
    device_blocks,
    host_places,
    measured_batched_tokens,
    memory_left,
    model_len,
    step_seconds,
)

Load = Callable[[EngineConfig, Report, GiveUp], LoadedModel]

logger = logging.getLogger(__name__)


class Engine(NamedTuple):
    """A model with its cache, the scheduler over it, and what makes the executor of its plans."""

    model: LoadedModel
    scheduler: Lifecycle
    executor: MakeExecutor

    def loop(
        self,
        config: EngineConfig,
        executor: Executor,
        endpoint: Endpoint,
        give_up: GiveUp | None = None,
    ) -> EngineLoop:
        """Return the loop that serves what comes through `endpoint`; `executor` runs this engine's runner."""
        return EngineLoop(
            endpoint,
            self.scheduler,
            executor,
            vocab_size=self.model.executable.vocab_size,
            eos_token_ids=self.model.eos_token_ids,
            depth=self.scheduler.config.max_plans_in_flight,
            step_timeout_seconds=config.step_timeout_seconds,
            give_up=give_up,
            compiler=self._compiler(config),
            open_adapter=self._open_adapter,
        )

    def _open_adapter(self, folder: Path) -> OpenedAdapter:
        open_own, ranks = self.model.executable.open_adapter, self.model.ranks
        return open_own(folder) if ranks is None else ranks.open_adapter(folder, open_own)

    def _compiler(self, config: EngineConfig) -> GrammarCompiler | None:
        path = Path(config.vocabulary)
        vocab_size, ends = self.model.executable.vocab_size, self.model.eos_token_ids
        return GrammarCompiler(lambda: read_vocabulary(path), vocab_size, ends) if config.vocabulary else None


def serve(config: EngineConfig, endpoint: Endpoint, give_up: GiveUp, load: Load = load_model) -> None:
    """Load the model and serve until `Shutdown`. Raises StartError, with its remedy, if that cannot be done.

    `give_up` ends this process with a reason where this thread cannot, for it waits for a step that does not end.
    """
    report = _reporter(endpoint)
    engine = build_engine(load(config, report, give_up), config, report)
    # What is alive now lives as long as the process: later collections need not look at it again.
    gc.collect()
    gc.freeze()
    loaded = _loaded(engine.model, engine.scheduler)
    logger.info(
        "Serving %s (%s, %s): context %d, %d sequences and %d tokens a step, %d plans in flight, %d threads",
        config.model,
        loaded.backend,
        loaded.dtype,
        loaded.max_model_len,
        loaded.max_num_seqs,
        loaded.max_num_batched_tokens,
        engine.scheduler.config.max_plans_in_flight,
        config.threads,
    )
    endpoint.send(loaded)
    executor = engine.executor()
    engine.loop(config, executor, endpoint, give_up).run()
    executor.close()


def build_engine(model: LoadedModel, config: EngineConfig, report: Report, allocated: tuple[int, ...] = ()) -> Engine:
    """Allocate the model's cache and put a scheduler and a runner over it. Raises StartError.

    `allocated`: the blocks of a cache that the model has already and that is taken over if it has the size asked for;
    a fresh scheduler finds nothing in it.
    """
    num_blocks = _allocate(model, config, report, allocated)
    layout = model.executable.layout
    ranks = config.tensor_parallel_size  # each keeps its share of a block
    places = host_places(config.kv_offload_memory // ranks, memory_left() // ranks, layout.groups)
    try:
        scheduler_config = _scheduler_config(model, config, num_blocks, places, report)
        scheduler = create_scheduler(scheduler_config, _draft_source(model, config))
    except ValueError as error:
        raise StartError(f"{error}.") from error
    return Engine(model, scheduler, prepare_executor(model, config, scheduler.config, places))


def _draft_source(model: LoadedModel, config: EngineConfig) -> DraftSource | None:
    if config.speculation == "off" or (config.speculation == "auto" and model.backend != "cpu"):
        return None
    return PromptLookup(config.num_speculative_tokens)


def _reporter(endpoint: Endpoint) -> Report:
    def report(stage: str, fraction: float) -> None:
        endpoint.send(Progress(stage, fraction))

    return report


def _allocate(model: LoadedModel, config: EngineConfig, report: Report, allocated: tuple[int, ...]) -> tuple[int, ...]:
    report("Allocating the KV cache", 0.0)
    layout = model.executable.layout
    num_blocks = model.num_blocks
    if not num_blocks:
        # A cache that is there already is taken over, or given back before its successor is made.
        held = sum(count * group.bytes_per_block for count, group in zip(allocated, layout.groups, strict=False))
        if model.gpu is not None and model.gpu.device.type == "cuda":
            num_blocks = device_blocks(config.kv_cache_memory, device_left(model.gpu, config), layout.groups)
        else:
            num_blocks = choose_blocks(config.kv_cache_memory, memory_left() + held, layout.groups, layout.block_size)
    if num_blocks == allocated:
        return num_blocks
    started = time.perf_counter()
    try:
        layout.allocate(num_blocks)
    except MemoryError as error:
        raise StartError(
            f"The KV cache could not be allocated ({error}): ask for less with --kv-cache-memory."
        ) from error
    logger.info(
        "KV cache: %s blocks, allocated in %.1f s", "+".join(map(str, num_blocks)), time.perf_counter() - started
    )
    return num_blocks


def _scheduler_config(
    model: LoadedModel,
    config: EngineConfig,
    num_blocks: tuple[int, ...],
    places: tuple[int, ...],
    report: Report,
) -> SchedulerConfig:
    report("Measuring a step", 0.0)
    batched_tokens = config.max_num_batched_tokens or _batched_tokens(model, config, num_blocks)
    base = SchedulerConfig(
        groups=tuple(
            CacheGroup(count, group.window, kept)
            for count, group, kept in zip(num_blocks, model.executable.layout.groups, places, strict=True)
        ),
        max_model_len=model.max_model_len,
        block_size=model.executable.layout.block_size,
        max_num_seqs=config.max_num_seqs or min(DEFAULT_MAX_NUM_SEQS, batched_tokens),
        max_num_batched_tokens=batched_tokens,
        eos_token_ids=model.eos_token_ids,
        policy=config.scheduler,
        kv_allocation=config.kv_allocation,
        prefix_sharing=config.prefix_sharing,
        max_drafts=config.num_speculative_tokens,
        max_queue_requests=config.max_queue_requests,
        max_queue_tokens=config.max_queue_tokens,
        max_plans_in_flight=config.plans_in_flight or (2 if model.device == "cuda" else 1),
        model_digest=model.digest,
        quantization=model.quantization,
        kv_dtype=model.kv_dtype,
    )
    return dataclasses.replace(base, max_model_len=model_len(config.max_model_len, model.max_model_len, base))


def _batched_tokens(model: LoadedModel, config: EngineConfig, num_blocks: tuple[int, ...]) -> int:
    """Return the default step size; never less than one token for each sequence that was asked for."""
    if model.gpu is not None:
        return gpu_batched_tokens(config)
    measured = measured_batched_tokens(
        lambda tokens: step_seconds(cast(Executable, model.executable), num_blocks, tokens)
    )
    logger.info("A step of 150 ms holds %d tokens here", measured)
    return max(measured, config.max_num_seqs)


def _loaded(model: LoadedModel, scheduler: Lifecycle) -> Loaded:
    config = scheduler.config
    return Loaded(
        model_digest=model.digest,
        vocab_size=model.executable.vocab_size,
        max_model_len=config.max_model_len,
        block_size=config.block_size,
        num_blocks=sum(group.num_blocks for group in config.groups),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        dtype=model.dtype,
        quantization=model.quantization,
        backend=model.backend,
        eos_token_ids=model.eos_token_ids,
        embeddings=_embeddings(model),
    )


def _embeddings(model: LoadedModel) -> Embeddings:
    pooling = model.pooling
    return Embeddings(model.executable.hidden_size, pooling.shortens, pooling.lengths, pooling.refusal)
