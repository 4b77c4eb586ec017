"""The engine in this process: the real loop, scheduler, executor and model, with no HTTP and no second process.

All requests are submitted at once, as the peers' offline interfaces are measured. A harness loads its model once and
runs it under any configuration of the scheduler, so that two of them compare on the same weights in the same memory.
"""

from __future__ import annotations

import gc
import hashlib
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import msgspec
import numpy as np

from octavo_engine.bench.machine import Machine, describe_machine
from octavo_engine.bench.observe import Observed, ObservingExecutor
from octavo_engine.bench.workload import VOCABULARY, Item
from octavo_engine.core.lifecycle import Lifecycle
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.messages import (
    Refused,
    SamplingParams,
    Shutdown,
    Snapshot,
    Step,
    StopRule,
    Submit,
    ToEngine,
    ToServer,
)
from octavo_engine.ipc.scores import read_scores
from octavo_engine.worker.cgroup import compute_threads
from octavo_engine.worker.guardian import Endpoint
from octavo_engine.worker.load import LoadedModel, Report, load_model
from octavo_engine.worker.start import Engine, build_engine

Tell = Callable[[int, int], None]
"""Called with output tokens so far and in all."""


class BenchError(RuntimeError):
    """A run did not give what it must; the message is one sentence."""


class RunResult(NamedTuple):
    """One run of a workload. Times in seconds since all of it was submitted; one entry per request where a list."""

    seconds: float
    prompt_tokens: int
    output_tokens: int
    ttft: list[float]
    itl: list[float]
    """Gaps between messages with tokens of one request, all requests together."""
    tokens: list[tuple[int, ...]]
    observed: Observed
    snapshot: Snapshot
    logprobs: list[list[float]]
    """Of each prompt's tokens but the first, if the run scores."""

    @property
    def output_rate(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.seconds

    @property
    def total_rate(self) -> float:
        """Prompt and output tokens a second."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds

    @property
    def python_share(self) -> float | None:
        """The share of the loop's busy time spent outside kernels; None where the backend does not count."""
        busy, inside = self.snapshot.busy_seconds, self.snapshot.kernel_seconds
        return 1.0 - inside / busy if inside and busy else None

    @property
    def digest(self) -> str:
        """Name all generated tokens, in the order of the requests: equal digests, equal outputs."""
        state = hashlib.sha256()
        for tokens in self.tokens:
            state.update(struct.pack(f"<{len(tokens) + 1}i", len(tokens), *tokens))
        return state.hexdigest()[:16]


class Harness:
    """A loaded model, and runs over it."""

    def __init__(self, config: EngineConfig, report: Report) -> None:
        """Load `config.model` (fetched before, see `octavo pull`). Raises StartError with its remedy."""
        self.config = msgspec.structs.replace(
            config,
            threads=config.threads or compute_threads(),
            socket_folder="",
            # All requests are there at once, however many: the bounds that a server sets are none of what is measured.
            max_queue_requests=0,
            max_queue_tokens=0,
        )
        self._report = report
        self.model: LoadedModel = load_model(self.config, report)
        self._allocated: tuple[int, ...] = ()

    @property
    def vocab(self) -> int:
        """The largest token id a workload for this model may hold."""
        return min(VOCABULARY, self.model.executable.vocab_size - 1)

    @property
    def pool(self) -> Any:
        """The backend's native thread pool, None for a backend without one."""
        return getattr(self.model.executable, "pool", None)

    @property
    def machine(self) -> Machine:
        """This machine, with the threads and the instruction set that the model computes on."""
        pool = self.pool
        return describe_machine(self.config.threads, "" if pool is None else pool.variant)

    def describe(self) -> dict[str, Any]:
        """Return the configuration in the words of `octavo serve`'s flags, what was left open as it was chosen."""
        model, config = self.model, self.config
        return {
            "model": config.model,
            "backend": model.backend,
            "dtype": model.dtype,
            "quantization": model.quantization,
            "kv-cache-dtype": model.kv_dtype,
            "kv-cache-memory": config.kv_cache_memory or "default",
            "max-model-len": config.max_model_len,
            "max-num-seqs": config.max_num_seqs,
            "max-num-batched-tokens": config.max_num_batched_tokens,
            "scheduler": config.scheduler,
            "kv-allocation": config.kv_allocation,
            "prefix-sharing": "on" if config.prefix_sharing else "off",
            "speculation": config.speculation,
            "threads": config.threads,
        }

    def unload(self) -> None:
        """Give the model's memory back; the harness runs nothing any more."""
        del self.model
        gc.collect()

    def build(self, **changes: Any) -> Engine:
        """Return a fresh engine (empty cache) over the model, its configuration changed. Raises StartError."""
        config = msgspec.structs.replace(self.config, **changes)
        model = self.model._replace(num_blocks=()) if config.kv_cache_memory else self.model
        # Known to be there again only once it is: what fails while it is made leaves no cache.
        allocated, self._allocated = self._allocated, ()
        engine = build_engine(model, config, self._report, allocated)
        self._allocated = tuple(group.num_blocks for group in engine.scheduler.config.groups)
        return engine

    def settle(self) -> EngineConfig:
        """Replace what the configuration leaves to measurement by what is measured here, once; return it.

        The KV memory too: what is left on a machine changes from run to run.
        """
        chosen = self.build().scheduler.config
        groups = self.model.executable.layout.groups
        self._report = _silent
        self.config = msgspec.structs.replace(
            self.config,
            kv_cache_memory=chosen.groups[0].num_blocks * sum(group.bytes_per_block for group in groups),
            max_num_seqs=chosen.max_num_seqs,
            max_num_batched_tokens=chosen.max_num_batched_tokens,
            max_model_len=chosen.max_model_len,
        )
        return self.config

    def run(
        self,
        items: Sequence[Item],
        tell: Tell | None = None,
        adapt: Callable[[Engine], Engine] | None = None,
        score: bool = False,
        clients: int = 0,
        **changes: Any,
    ) -> RunResult:
        """Run the items on an empty cache, greedily, each to its full output.

        `adapt` may exchange the scheduler; `score` asks for the prompts' log-probabilities; `clients` send one request
        after the other, with 0 all are submitted at once. Raises StartError for a configuration that cannot be,
        BenchError if a request fails.
        """
        engine = self.build(**changes)
        _assert_fit(items, engine.scheduler.config.max_model_len)
        return run_engine(adapt(engine) if adapt else engine, self.config, items, tell, score, clients)


def _assert_fit(items: Sequence[Item], max_model_len: int) -> None:
    """Raise BenchError for a request that the engine would end early: then less is measured than was asked for."""
    for index, item in enumerate(items):
        if len(item.prompt) + item.max_tokens > max_model_len:
            raise BenchError(
                f"Request {index} has {len(item.prompt):,} tokens and generates {item.max_tokens:,}, which a context "
                f"of {max_model_len:,} does not hold: choose a shorter workload, or a longer context if there is one."
            )


def _silent(stage: str, fraction: float) -> None:
    """Say nothing: what is built again for each run is no news."""


def run_engine(
    engine: Engine,
    config: EngineConfig,
    items: Sequence[Item],
    tell: Tell | None = None,
    score: bool = False,
    clients: int = 0,
) -> RunResult:
    """Run the items on an engine to their ends, and leave it idle. Raises BenchError."""
    client = _Client(items, tell, score, clients)
    seen = run_loop(engine, config, client)
    return RunResult(
        seconds=client.ended - client.began,
        prompt_tokens=sum(len(item.prompt) for item in items),
        output_tokens=sum(map(len, client.tokens)),
        ttft=[first - client.began for first in client.first],
        itl=client.gaps,
        tokens=[tuple(tokens) for tokens in client.tokens],
        observed=seen,
        snapshot=client.snapshot,
        logprobs=client.logprobs,
    )


def run_loop(engine: Engine, config: EngineConfig, endpoint: Endpoint) -> Observed:
    """Run an engine's loop until `endpoint` says `Shutdown`, and leave it idle. Raises BenchError if it is not.

    An interrupt (Ctrl-C) of the calling thread ends the loop behind the step that it is in.
    """
    executor = ObservingExecutor(engine.executor(), engine.scheduler)
    gc.collect()
    ended = _Interruptible(endpoint)
    # Its own thread, as the engine process has: the pool's threads and this one's affinity are the same.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-loop") as thread:
        try:
            running = thread.submit(engine.loop(config, executor, ended).run)
            try:
                running.result()
            except KeyboardInterrupt:
                ended.interrupt()
                wait([running])
                raise
        finally:
            executor.close()
    _assert_idle(engine.scheduler)
    return executor.seen


class _Interruptible:
    """`Endpoint` whose next poll raises once somebody interrupted: the loop asks between any two steps."""

    def __init__(self, inner: Endpoint) -> None:
        self._inner = inner
        self._interrupted = False

    def interrupt(self) -> None:
        self._interrupted = True
        self._inner.wake()

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        if self._interrupted:
            raise BenchError("The run was interrupted.")
        return self._inner.poll(timeout_seconds)

    def wake(self) -> None:
        self._inner.wake()

    def send(self, message: ToServer) -> None:
        self._inner.send(message)


def _assert_idle(scheduler: Lifecycle) -> None:
    try:
        scheduler.assert_idle()
    except AssertionError as error:
        raise BenchError(f"The run left something behind: {error}.") from error


class _Client:
    """`Endpoint` that is its own API process: submissions as clients come free, `Shutdown` once everybody ended.

    With `clients` 0 all submissions are in the first poll.
    """

    def __init__(self, items: Sequence[Item], tell: Tell | None, score: bool, clients: int) -> None:
        self._free = clients or len(items)
        self._submits: list[ToEngine] = [_submit(index, item, score) for index, item in enumerate(items)]
        self._tell = tell
        self._open = len(items)
        self._wanted = sum(item.max_tokens for item in items)
        self._given = 0
        self.began = self.ended = time.perf_counter()
        self.first = [0.0] * len(items)
        self._last = [0.0] * len(items)
        self.gaps: list[float] = []
        self.tokens: list[list[int]] = [[] for _ in items]
        self.logprobs: list[list[float]] = [[] for _ in items]
        self.snapshot: Snapshot

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        """Return what the loop has not seen yet. Never waits: the loop asks with patience only when nothing is open."""
        if self._submits and self._free:
            if len(self._submits) == len(self.tokens):
                self.began = time.perf_counter()
            submits, self._submits = self._submits[: self._free], self._submits[self._free :]
            self._free -= len(submits)
            return submits
        return [] if self._open else [Shutdown()]

    def wake(self) -> None:
        """Nothing waits."""

    def send(self, message: ToServer) -> None:
        """Take in a step's outputs. Raises BenchError for a request that failed or was refused."""
        if isinstance(message, Refused):
            raise BenchError(f"Request {message.request} was refused: {message.detail}")
        if not isinstance(message, Step):
            return
        now = time.perf_counter()
        self.snapshot = message.snapshot
        for output in message.outputs:
            if output.finish not in ("", "length"):
                raise BenchError(
                    f"Request {output.request} ended with '{output.finish}': {output.detail or 'no reason'}"
                )
            if output.prompt_logprobs:
                self.logprobs[output.request] += [score.logprob for score in read_scores(output.prompt_logprobs, 0)]
            if output.tokens:
                self._take(output.request, output.tokens, now)
            if output.finish:
                self._open -= 1
                self._free += 1
                self.ended = now
        if self._tell is not None:
            self._tell(self._given, self._wanted)

    def _take(self, request: int, tokens: tuple[int, ...], now: float) -> None:
        if self._last[request]:
            self.gaps.append(now - self._last[request])
        else:
            self.first[request] = now
        self._last[request] = now
        self.tokens[request] += tokens
        self._given += len(tokens)


def _submit(index: int, item: Item, score: bool) -> Submit:
    return Submit(
        request=index,
        prompt=np.array(item.prompt, dtype="<i4").tobytes(),
        sampling=SamplingParams(seed=0, temperature=0.0),
        stop=StopRule(max_tokens=item.max_tokens, ignore_eos=True),
        prompt_logprobs=0 if score else -1,
    )
