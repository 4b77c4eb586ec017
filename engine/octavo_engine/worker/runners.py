"""Which runner computes a model's plans, and the executor that fits it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from octavo_engine.core.config import SchedulerConfig
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.worker.executable import Executable
from octavo_engine.worker.executor import Executor, make_executor
from octavo_engine.worker.host_store import HostStore
from octavo_engine.worker.load import LoadedModel
from octavo_engine.worker.runner import Runner
from octavo_engine.worker.sizing import StartError

if TYPE_CHECKING:
    from octavo_engine.worker.gpu.compute import RunnerSizes
    from octavo_engine.worker.gpu.runner import GpuRunner

logger = logging.getLogger(__name__)

MakeExecutor = Callable[[], Executor]


def prepare_executor(
    model: LoadedModel, config: EngineConfig, scheduler: SchedulerConfig, places: Sequence[int]
) -> MakeExecutor:
    """Make the runner over a model whose cache is allocated, and return what makes its executor.

    places: of the host tier, per KV group. Raises StartError.
    """
    if any(places):
        logger.info("Host tier: %s blocks that the KV cache evicts are kept", "+".join(map(str, places)))
    try:
        make = _prepare_gpu if model.gpu is not None else _prepare_cpu
        return make(model, config, scheduler, places)
    except MemoryError as error:
        raise StartError("The host tier could not be allocated: ask for less with --kv-offload-memory.") from error
    except RuntimeError as error:
        # What torch raises where a device has no room left; everything else is no matter of sizes.
        if type(error).__name__ != "OutOfMemoryError":
            raise
        raise StartError(
            "The GPU has no room for what steps need beside the KV cache: ask for less with --kv-cache-memory or "
            "--max-num-seqs, or take --enforce-eager."
        ) from error


def _prepare_cpu(
    model: LoadedModel, config: EngineConfig, scheduler: SchedulerConfig, places: Sequence[int]
) -> MakeExecutor:
    executable = cast(Executable, model.executable)
    runner = Runner(
        executable,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=scheduler.max_model_len,
        threads=max(1, config.threads),
        pooling=model.pooling.kind,
        host=HostStore(executable.layout, places) if any(places) else None,
    )
    return lambda: make_executor(runner, scheduler.max_plans_in_flight)


def _prepare_gpu(
    model: LoadedModel, config: EngineConfig, scheduler: SchedulerConfig, places: Sequence[int]
) -> MakeExecutor:
    # Only now: they import torch.
    from octavo_engine.worker.gpu.compute import RunnerSizes
    from octavo_engine.worker.queued_executor import QueuedExecutor
    from octavo_engine.worker.ranks.executor import RankedExecutor
    from octavo_engine.worker.ranks.messages import Begin

    sizes = RunnerSizes(scheduler.max_num_seqs, scheduler.max_model_len, scheduler.max_num_batched_tokens)
    ranks = model.ranks
    if ranks is None:
        runner = make_gpu_runner(model, config, sizes, places)
        return lambda: QueuedExecutor(runner)
    blocks = tuple(group.num_blocks for group in scheduler.groups)
    ranks.begin(Begin(blocks, tuple(places), *sizes, scheduler.max_plans_in_flight))
    runner = make_gpu_runner(model, config, sizes, places)
    ranks.wait_begun()
    return lambda: RankedExecutor(QueuedExecutor(runner), ranks)


def make_gpu_runner(model: LoadedModel, config: EngineConfig, sizes: RunnerSizes, places: Sequence[int]) -> GpuRunner:
    """Make a rank's runner over a model whose cache is allocated. All ranks do so at the same time."""
    from octavo_engine.worker.gpu.graphs import graph_sizes
    from octavo_engine.worker.gpu.host_store import GpuHostStore
    from octavo_engine.worker.gpu.runner import GpuRunner
    from octavo_engine.worker.grammar import GrammarRows

    gpu = model.gpu
    assert gpu is not None
    captures = gpu.device.type == "cuda" and not config.enforce_eager
    runner = GpuRunner(
        gpu,
        sizes,
        invariant=config.batch_invariant,
        graph_sizes=graph_sizes(sizes.max_num_seqs) if captures else (),
        grammars=GrammarRows(gpu.vocab_size, max(1, config.threads)),
        pooling=model.pooling.kind,
        host=GpuHostStore(gpu.layout, places) if any(places) else None,
    )
    if gpu.device.type == "cuda":
        runner.warm_up()
    return runner
