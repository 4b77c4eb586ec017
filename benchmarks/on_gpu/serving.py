"""The engine as it serves, without its processes: the real scheduler and runner, two plans in flight."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from benchmarks.on_gpu.shapes import Shape, random_weights
from benchmarks.on_gpu.timing import DeviceTime, synchronize

from octavo_engine.core.config import CacheGroup, Request, SchedulerConfig
from octavo_engine.core.scheduler import create_scheduler
from octavo_engine.core.stop import StopRule
from octavo_engine.sampling.parameters import make_parameters
from octavo_engine.worker.gpu.compute import RunnerSizes
from octavo_engine.worker.gpu.graphs import graph_sizes
from octavo_engine.worker.gpu.load import ModelSizes, Place, assemble_gpu
from octavo_engine.worker.gpu.model import GpuModel
from octavo_engine.worker.gpu.precision import GpuPrecision
from octavo_engine.worker.gpu.runner import GpuRunner
from octavo_engine.worker.gpu.weights import ModelWeights

BLOCK: Final = 16
IN_FLIGHT: Final = 2
NAMES: Final = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


class Job(NamedTuple):
    """A request: its prompt, and how many tokens are generated."""

    prompt: tuple[int, ...]
    tokens: int


class Stepped(NamedTuple):
    """A step that has ended. ended: seconds on the host's clock."""

    rows: int
    tokens: int
    ended: float


class Started(NamedTuple):
    """Seconds until a model serves."""

    weights: float
    model: float
    runner: float


class Loaded(NamedTuple):
    """A model on the device, and how long it took to get there."""

    shape: Shape
    weights: ModelWeights
    model: GpuModel
    runner: GpuRunner
    blocks: int
    started: Started


def load(
    shape: Shape,
    device: torch.device,
    dtype: torch.dtype,
    sizes: RunnerSizes,
    *,
    kind: str = "dense",
    invariant: bool = False,
    weights: ModelWeights | None = None,
    blocks: int = 0,
    graphs: bool = True,
) -> Loaded:
    """Make random weights (or take those given), allocate the cache, capture the graphs.

    blocks: of the KV cache, 0 for as many as the slots can fill.
    """
    times, spec = [time.perf_counter()], shape.spec

    def lap() -> None:
        synchronize(device)
        times.append(time.perf_counter())

    if weights is None:
        weights = random_weights(spec, device, dtype, kind)
    lap()
    precision = GpuPrecision(NAMES[dtype], kind, NAMES[dtype])
    asked = ModelSizes(BLOCK, sizes.max_model_len, sizes.max_num_batched_tokens, invariant)
    model = assemble_gpu(spec, weights, precision, Place(device), asked)
    blocks = blocks or sizes.max_num_seqs * -(-sizes.max_model_len // BLOCK)
    model.layout.allocate([blocks] * len(model.layout.groups))
    lap()
    captured = graph_sizes(sizes.max_num_seqs) if graphs and device.type == "cuda" else ()
    runner = GpuRunner(model, sizes, invariant=invariant, graph_sizes=captured)
    lap()
    first, second, third, fourth = times
    return Loaded(shape, weights, model, runner, blocks, Started(second - first, third - second, fourth - third))


def serve(
    loaded: Loaded,
    jobs: Sequence[Job],
    *,
    temperature: float = 0.0,
    held: DeviceTime | None = None,
    hold: int = 0,
    sharing: bool = True,
) -> tuple[list[Stepped], dict[int, list[int]]]:
    """Serve all jobs; return the steps in order, and each job's tokens.

    held: steps in which every job decodes are measured there, `hold` of them, and are slower for it.
    """
    runner, sizes = loaded.runner, loaded.runner.sizes
    scheduler = create_scheduler(
        SchedulerConfig(
            groups=tuple(CacheGroup(loaded.blocks) for _ in loaded.model.layout.groups),
            max_model_len=sizes.max_model_len,
            max_num_seqs=sizes.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            prefix_sharing=sharing,
        )
    )
    for number, job in enumerate(jobs):
        settings = make_parameters(loaded.shape.vocab, seed=number, temperature=temperature)
        runner.register(number, settings)
        refusal = scheduler.submit(Request((number,), job.prompt, StopRule(job.tokens, ignore_eos=True), float(number)))
        if refusal is not None:
            raise RuntimeError(refusal.detail)
    steps: list[Stepped] = []
    told: dict[int, list[int]] = {number: [] for number in range(len(jobs))}
    pending: deque = deque()
    while scheduler.has_work:
        plan = scheduler.schedule() if len(pending) < IN_FLIGHT else None
        if plan is not None:
            decodes = len(plan.rows) == min(len(jobs), sizes.max_num_seqs) == plan.num_tokens
            if held is not None and decodes and len(held) < hold:
                with held.held():
                    pending.append(runner.launch(plan))
            else:
                pending.append(runner.launch(plan))
            continue
        launched = pending.popleft()
        for event in scheduler.commit(launched.plan, launched.result()):
            told[event.sequence].extend(event.tokens)
            if event.finish:
                runner.forget(event.sequence)
            if event.finish == "error":
                raise RuntimeError(f"Sequence {event.sequence} failed: {event.detail}")
        steps.append(Stepped(len(launched.plan.rows), launched.plan.num_tokens, time.perf_counter()))
    scheduler.assert_idle()
    # A plan brings what was released before it; the next scheduler begins with free slots.
    release(runner)
    return steps, told


def release(runner: GpuRunner) -> None:
    """Free all slots of a runner, for the next scheduler."""
    from octavo_engine.core.step import StepPlan

    held = tuple(int(slot) for slot in np.flatnonzero(runner.batch.sequences >= 0))
    runner.execute(StepPlan(-1, held, (), (), (), ()))


def steady(steps: Sequence[Stepped], rows: int, skip: int = 8) -> float:
    """Return the mean wall of the decode steps of `rows` rows, the first `skip` of them left out."""
    places = [index for index, step in enumerate(steps) if step.rows == rows == step.tokens][skip:]
    if len(places) < 2:
        raise RuntimeError(f"There are no steady decode steps of {rows} rows among {len(steps)} steps.")
    return (steps[places[-1]].ended - steps[places[0]].ended) / (places[-1] - places[0])


def random_jobs(count: int, vocab: int, prompt: tuple[int, int], tokens: tuple[int, int], seed: int = 0) -> list[Job]:
    """Return jobs with prompts of uniformly random lengths, and outputs most of which are short.

    prompt, tokens: least and most. Equal: all have that length.
    """
    random = np.random.default_rng(seed)
    jobs = []
    for _ in range(count):
        length = int(random.integers(prompt[0], prompt[1] + 1))
        wanted = int(tokens[0] + (tokens[1] - tokens[0]) * random.random() ** 2)
        jobs.append(Job(tuple(random.integers(3, vocab, length).tolist()), wanted))
    return jobs
