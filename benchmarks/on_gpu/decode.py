"""The engine on Llama-3.1-8B's shape: from nothing to the first token, one stream, many, and what invariance costs."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from benchmarks.on_gpu.machine import Bench
from benchmarks.on_gpu.report import Section, sentence_of
from benchmarks.on_gpu.serving import Loaded, load, random_jobs, serve, steady
from benchmarks.on_gpu.shapes import LLAMA_8B, QWEN_8B, QWEN_30B, Shape
from benchmarks.on_gpu.timing import DeviceTime, make_room

from octavo_engine.worker.gpu.compute import RunnerSizes

OF_ROOFLINE = 0.80
OUTSIDE = 0.03


class Streams(NamedTuple):
    """A decode measurement: how many streams, their prompts, the tokens each generates."""

    count: int
    prompt: int
    tokens: int


def run(bench: Bench, section: Section) -> None:
    """Tell start-up, one stream, steps' overhead, and the batch-invariant mode against the other."""
    shape = bench.pick(LLAMA_8B, LLAMA_8B.tiny())
    one, many = bench.pick((Streams(1, 512, 160), Streams(64, 512, 96)), (Streams(1, 3, 5), Streams(2, 3, 5)))
    sizes = RunnerSizes(many.count, bench.pick(1024, 32), bench.pick(2048, 16))
    loaded = load(shape, bench.device, bench.dtype, sizes)
    _tell_start(bench, section, loaded)
    alone = _step_seconds(bench, loaded, one)
    _tell_roofline(bench, section, "one stream", loaded, one, alone)
    together = _step_seconds(bench, loaded, many)
    section.add(
        f"{many.count} streams: a decode step", together * 1e3, "ms", detail=f"{many.count / together:,.0f} tokens/s"
    )
    for streams, wall in ((one, alone), (many, together)):
        _tell_overhead(bench, section, loaded, streams, wall)
    _tell_invariant(bench, section, loaded, {one: alone, many: together})


def run_shapes(bench: Bench, section: Section) -> None:
    """Tell one stream and 64 for the other shapes, and for quantised weights."""
    streams = bench.pick((Streams(1, 512, 96), Streams(64, 512, 64)), (Streams(1, 3, 5), Streams(2, 3, 5)))
    kinds = [kind for kind in bench.configurations.kinds() if kind != "dense"]
    cases = [(QWEN_30B, "dense"), (QWEN_8B, "dense"), *((LLAMA_8B, kind) for kind in kinds)]
    for shape, kind in cases[: bench.pick(None, 1)]:
        name = f"{shape.name} {'bf16' if kind == 'dense' else kind}"
        if bench.late:
            section.remark(f"{name} was left out: the time was over.")
            continue
        try:
            _tell_shape(bench, section, name, bench.pick(shape, shape.tiny()), kind, streams)
        except (MemoryError, torch.OutOfMemoryError) as error:
            section.remark(f"{name} has no room here: {sentence_of(error)}")
        except Exception as error:  # noqa: BLE001 - told, and the next shape has its turn
            section.fail(f"{name}: {sentence_of(error)}")
        make_room(bench.device)


def _tell_shape(
    bench: Bench, section: Section, name: str, shape: Shape, kind: str, streams: tuple[Streams, Streams]
) -> None:
    sizes = RunnerSizes(streams[1].count, bench.pick(1024, 32), bench.pick(2048, 16))
    loaded = load(shape, bench.device, bench.dtype, sizes, kind=kind)
    for each in streams:
        wall = _step_seconds(bench, loaded, each)
        if each.count == 1 and (kind != "dense" or not shape.experts):
            _tell_roofline(bench, section, f"{name}, one stream", loaded, each, wall, goal=False)
        elif each.count == 1:
            moved = shape.active_bytes + shape.kv_bytes * (each.prompt + each.tokens // 2)
            detail = f"{wall * 1e3:.3f} ms, {1 / wall:.0f} tokens/s"
            section.add(f"{name}, one stream: of bandwidth", moved / wall / bench.copy, "share", detail=detail)
        else:
            section.add(
                f"{name}, {each.count} streams", each.count / wall, "tokens/s", detail=f"{wall * 1e3:.2f} ms a step"
            )


def _tell_start(bench: Bench, section: Section, loaded: Loaded) -> None:
    weights, model, runner = loaded.started
    gigabytes = loaded.weights.nbytes / 1e9
    section.add("start: random weights made on the device", weights, "s", detail=f"{gigabytes:.1f} GB")
    section.add("start: model and KV cache", model, "s")
    section.add("start: runner, graphs captured", runner, "s")
    began = time.perf_counter()
    serve(loaded, random_jobs(1, loaded.shape.vocab, bench.pick((512, 512), (5, 5)), (2, 2)))
    section.add("start: the first request, kernels compiled on the way", time.perf_counter() - began, "s")
    section.add("start: in all", sum(loaded.started) + time.perf_counter() - began, "s")


def _step_seconds(bench: Bench, loaded: Loaded, streams: Streams) -> float:
    """Return the wall of a steady decode step."""
    if bench.cuda:  # what this many rows need is compiled
        serve(loaded, _jobs(loaded, streams._replace(tokens=4), seed=1))
    steps, _ = serve(loaded, _jobs(loaded, streams))
    return steady(steps, streams.count, skip=bench.pick(16, 0))


def _jobs(loaded: Loaded, streams: Streams, seed: int = 0) -> list:
    lengths, tokens = (streams.prompt, streams.prompt), (streams.tokens, streams.tokens)
    return random_jobs(streams.count, loaded.shape.vocab, lengths, tokens, seed)


def _tell_roofline(
    bench: Bench, section: Section, name: str, loaded: Loaded, streams: Streams, wall: float, *, goal: bool = True
) -> None:
    """Tell the share of the copy bandwidth: every weight but the embedding, and the cache, are read once a step."""
    weights = loaded.weights.nbytes - loaded.weights.embedding.nbytes
    moved = weights + loaded.shape.kv_bytes * (streams.prompt + streams.tokens // 2) * streams.count
    share, detail = moved / wall / bench.copy, f"{wall * 1e3:.3f} ms, {streams.count / wall:.0f} tokens/s"
    if goal:
        section.at_least(f"{name}: of the bandwidth roofline", share, "share", OF_ROOFLINE, detail=detail)
    else:
        section.add(f"{name}: of bandwidth", share, "share", detail=detail)


def _tell_overhead(bench: Bench, section: Section, loaded: Loaded, streams: Streams, wall: float) -> None:
    """Tell what of a step the device is not busy: its own time is taken while all of the step is queued beforehand."""
    device = DeviceTime(bench.device)
    serve(loaded, _jobs(loaded, streams), held=device, hold=bench.pick(24, 1))
    busy = device.median()
    name = f"{streams.count} streams: outside kernels" if streams.count > 1 else "one stream: outside kernels"
    section.at_most(
        name, max(0.0, 1 - busy / wall), "share", OUTSIDE, detail=f"{busy * 1e3:.3f} of {wall * 1e3:.3f} ms"
    )


def _tell_invariant(bench: Bench, section: Section, loaded: Loaded, plain: dict[Streams, float]) -> None:
    before = _prompt_seconds(bench, loaded)
    loaded.model.layout.caches.clear()
    fixed = load(loaded.shape, bench.device, bench.dtype, loaded.runner.sizes, invariant=True, weights=loaded.weights)
    for streams, wall in plain.items():
        taken = _step_seconds(bench, fixed, streams)
        name = f"batch-invariant, {streams.count} stream{'s' if streams.count > 1 else ''}: decode rate"
        section.add(name, wall / taken, "of the other", detail=f"{taken * 1e3:.3f} ms a step")
    taken = _prompt_seconds(bench, fixed)
    section.add("batch-invariant: prompts' rate", before / taken, "of the other", detail=f"{taken * 1e3:.1f} ms")


def _prompt_seconds(bench: Bench, loaded: Loaded) -> float:
    """Return the seconds from two prompts of one step to their tokens, the better of two times."""
    length, best = bench.pick(1000, 7), float("inf")
    for seed in bench.pick((5, 6), (5,)):
        jobs = random_jobs(2, loaded.shape.vocab, (length, length), (1, 1), seed)
        began = time.perf_counter()
        serve(loaded, jobs)
        best = min(best, time.perf_counter() - began)
    return best
