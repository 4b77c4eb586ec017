"""Paged attention on the device: decode, chunks, both in one launch, shared prefixes, windows, caps, cache types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.on_gpu.checks_case import BOUNDS, Case, difference
from benchmarks.on_gpu.machine import Bench
from benchmarks.on_gpu.paged import Heads, exact, make, plan

MIXED = [(1500, 1), (1, 1), (16, 1), (17, 17), (700, 130), (2047, 1), (15, 3)]
DECODE = [(1, 1), (15, 1), (16, 1), (17, 1), (1024, 1), (1025, 1), (3000, 1)]


def attention_cases(bench: Bench) -> Iterator[Case]:
    """Yield the comparisons: each is a kernel of its own, so that they are few that cover much."""
    bf16, fp8 = torch.bfloat16, torch.float8_e4m3fn
    yield _case(bench, "decode", Heads(32, 8, 128), bf16)
    yield _case(bench, "decode", Heads(32, 4, 128), bf16)
    yield _case(bench, "decode", Heads(9, 3, 64), bf16)
    yield _case(bench, "decode", Heads(4, 4, 256), torch.float16)
    yield _case(bench, "decode", Heads(32, 8, 128), torch.float32)
    yield _case(bench, "prefill", Heads(32, 8, 128), bf16)
    yield _case(bench, "prefill", Heads(32, 4, 128), torch.float16)
    yield _case(bench, "prefill", Heads(9, 3, 64), bf16)
    yield _case(bench, "prefill", Heads(8, 2, 256), bf16, softcap=30.0)
    yield _case(bench, "prefill", Heads(32, 8, 128), bf16, window=300)
    yield _case(bench, "invariant", Heads(32, 8, 128), bf16)
    yield _case(bench, "decode", Heads(32, 8, 128), bf16, shared=True)
    if bench.configurations.target.fp8:
        yield _case(bench, "decode", Heads(32, 8, 128), bf16, cache=fp8)
        yield _case(bench, "prefill", Heads(32, 8, 128), bf16, cache=fp8)
    yield Case("attention", "a row's bits, alone and in company", 0.0, lambda: _company(bench))


def _case(bench: Bench, step: str, heads: Heads, dtype: torch.dtype, **options: Any) -> Case:
    if bench.tiny:
        heads = Heads(heads.group * 2, 2, 16)
    told = ", ".join(f"{name} {value}" for name, value in options.items())
    label = f"{step}, {heads.query}/{heads.kv} heads of {heads.dim}, {dtype} {told}".rstrip()
    return Case("attention", label, BOUNDS[dtype], lambda: _error(bench, step, heads, dtype, **options))


def _error(
    bench: Bench,
    step: str,
    heads: Heads,
    dtype: torch.dtype,
    *,
    window: int = 0,
    softcap: float = 0.0,
    shared: bool = False,
    cache: torch.dtype | None = None,
) -> float:
    rows = bench.pick(DECODE if step == "decode" else MIXED, [(17, 1), (40, 3) if step != "decode" else (33, 1)])
    if shared:
        rows = bench.pick([(1024 + 7 * row, 1) for row in range(9)], [(70, 1)] * 5)
    paged = make(rows, heads, bench.device, dtype, cache_dtype=cache, shared=bench.pick(64, 4) if shared else 0)
    tuning = bench.configurations.attention(step, heads.dim, heads.group, cache or dtype)
    processors = bench.configurations.target.processors
    window = bench.pick(window, 9 if window else 0)
    run = plan(
        paged, tuning, processors, invariant=step == "invariant", window=window, softcap=softcap, prefixes=shared
    )
    return difference(run(), exact(paged, window, softcap))


def _company(bench: Bench) -> float:
    """A batch-invariant row must have the same bits beside others as alone: 0, or 1 if it has not."""
    heads = bench.pick(Heads(32, 8, 128), Heads(4, 2, 16))
    rows = bench.pick([(3000, 1), (77, 1), (600, 90)], [(40, 1), (20, 3)])
    paged = make(rows, heads, bench.device, bench.dtype)
    tuning = bench.configurations.attention("invariant", heads.dim, heads.group, bench.dtype)
    together = plan(paged, tuning, bench.configurations.target.processors, invariant=True)()
    for row, (begin, end) in enumerate(zip(paged.offsets[:-1], paged.offsets[1:], strict=True)):
        own = paged._replace(
            q=paged.q[begin:end], offsets=paged.offsets[row : row + 2] - begin,
            contexts=paged.contexts[row : row + 1], tables=paged.tables[row : row + 1],
        )  # fmt: skip
        alone = plan(own, tuning, bench.configurations.target.processors, invariant=True)()
        if not torch.equal(alone, together[begin:end]):
            return 1.0
    return 0.0
