"""Paged attention against the machine's rates, and against torch's own attention of the same work in the same run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.on_gpu.machine import Bench
from benchmarks.on_gpu.paged import Heads, make, plan
from benchmarks.on_gpu.report import Section, sentence_of
from benchmarks.on_gpu.timing import seconds_of
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

OF_BANDWIDTH = 0.85
OF_GEMM = 0.50


def run(bench: Bench, section: Section) -> None:
    """Time decode steps and prefill chunks at Llama-3.1-8B's heads, then decode at Qwen3-30B-A3B's."""
    heads = bench.pick(Heads(32, 8, 128), Heads(4, 2, 16))
    for rows, context in bench.pick(((64, 8192), (1, 131072)), ((3, 48), (1, 64))):
        _decode(bench, section, heads, rows, context)
    for before in bench.pick((0, 32768), (0, 32)):
        _prefill(bench, section, heads, before, bench.pick(2048, 16))
    _others(bench, section)


def _decode(bench: Bench, section: Section, heads: Heads, rows: int, context: int) -> None:
    paged = make([(context, 1)] * rows, heads, bench.device, bench.dtype)
    name = f"decode {rows} x {context}"
    tuning = bench.configurations.attention("decode", heads.dim, heads.group, bench.dtype)
    ours = plan(paged, tuning, bench.configurations.target.processors)
    taken = seconds_of(ours, bench.device, bench.seconds)
    share = paged.read_bytes / taken / bench.copy
    section.at_least(f"{name}: of copy bandwidth", share, "share", OF_BANDWIDTH, detail=f"{taken * 1e6:.1f} us")
    tuning = bench.configurations.attention("invariant", heads.dim, heads.group, bench.dtype)
    fixed = plan(paged, tuning, bench.configurations.target.processors, invariant=True)
    section.add(f"{name}, batch-invariant: x", seconds_of(fixed, bench.device, bench.seconds) / taken, "times as long")
    del fixed, ours, paged
    generator = torch.Generator(bench.device).manual_seed(0)
    _peers(bench, section, name, taken, heads, _random(bench, generator, rows, heads, 1, context), None)


def _prefill(bench: Bench, section: Section, heads: Heads, before: int, chunk: int) -> None:
    paged = make([(before + chunk, chunk)], heads, bench.device, bench.dtype)
    name = f"prefill of {chunk} on {before}"
    tuning = bench.configurations.attention("prefill", heads.dim, heads.group, bench.dtype)
    ours = plan(paged, tuning, bench.configurations.target.processors)
    taken = seconds_of(ours, bench.device, bench.seconds)
    share = paged.operations / taken / bench.gemm
    section.at_least(f"{name}: of the product's peak", share, "share", OF_GEMM, detail=f"{taken * 1e6:.1f} us")
    del ours, paged
    generator = torch.Generator(bench.device).manual_seed(0)
    _peers(bench, section, name, taken, heads, _random(bench, generator, 1, heads, chunk, before + chunk), before)


def _random(
    bench: Bench, generator: torch.Generator, rows: int, heads: Heads, queries: int, keys: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v as torch wants them: contiguous, [rows, heads, tokens, dimension]."""

    def values(count: int, tokens: int) -> Tensor:
        size = (rows, count, tokens, heads.dim)
        return torch.empty(size, dtype=bench.dtype, device=bench.device).normal_(generator=generator)

    return values(heads.query, queries), values(heads.kv, keys), values(heads.kv, keys)


def _peers(
    bench: Bench,
    section: Section,
    name: str,
    ours: float,
    heads: Heads,
    qkv: tuple[Tensor, Tensor, Tensor],
    before: int | None,
) -> None:
    """Time torch's attention over contiguous keys. before: keys before a chunk's, None for decode."""
    grouped = heads.group > 1
    peers: dict[str, Callable[[], Any]] = {}
    if before is None:
        peers["SDPA"] = lambda: F.scaled_dot_product_attention(*qkv, enable_gqa=grouped)
    elif before == 0:
        peers["SDPA"] = lambda: F.scaled_dot_product_attention(*qkv, is_causal=True, enable_gqa=grouped)
    else:
        bias = causal_lower_right(qkv[0].shape[2], qkv[1].shape[2])
        # The bias goes through torch's own dispatch, which takes no groups: heads are repeated outside of the time.
        spread = [qkv[0], *(part.repeat_interleave(heads.group, dim=1) for part in qkv[1:])]
        peers["SDPA"] = lambda: F.scaled_dot_product_attention(*spread, attn_mask=bias)
    peers["FlexAttention"] = _flex(bench, qkv, before, grouped)
    best = float("inf")
    for peer, call in peers.items():
        try:
            taken = _either_way(bench, call)
        except Exception as error:  # noqa: BLE001 - a peer that cannot do it is told, and is no peer
            section.remark(f"{name}: torch's {peer} did not run: {sentence_of(error)}")
            continue
        best = min(best, taken)
        section.add(f"{name}: torch's {peer} / ours", taken / ours, "x", detail=f"{taken * 1e6:.1f} us")
    if best < float("inf"):
        section.add(f"{name}: torch's best / ours", best / ours, "x")


def _either_way(bench: Bench, call: Callable[[], Any]) -> float:
    """Return the seconds of a call, from a graph as ours are, or launched by the host if no graph can hold it."""
    try:
        return seconds_of(call, bench.device, bench.seconds)
    except RuntimeError:
        return seconds_of(call, bench.device, bench.seconds, graph=False)


def _flex(bench: Bench, qkv: tuple[Tensor, Tensor, Tensor], before: int | None, grouped: bool) -> Callable[[], Any]:
    mask = None
    if before is not None:

        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return query + before >= key

        mask = create_block_mask(visible, None, None, qkv[0].shape[2], qkv[1].shape[2], device=bench.device)
    # Compiled as anybody uses it; in the interpreter its definition runs.
    call = torch.compile(flex_attention, dynamic=False) if bench.cuda else flex_attention
    return lambda: call(*qkv, block_mask=mask, enable_gqa=grouped)


def _others(bench: Bench, section: Section) -> None:
    """Decode with an fp8 cache, other heads, and many rows that share a prompt."""
    copy, target = bench.copy, bench.configurations.target
    rows, context = bench.pick((64, 8192), (4, 96))
    llama, qwen = bench.pick((Heads(32, 8, 128), Heads(32, 4, 128)), (Heads(4, 2, 16), Heads(4, 1, 16)))
    cases = {f"decode {rows} x {context}, 8 query heads a key head": (qwen, bench.dtype, 0)}
    if target.fp8:
        cases[f"decode {rows} x {context}, fp8 cache"] = (llama, torch.float8_e4m3fn, 0)
    cases[f"decode {rows} x {context}, all share 3/4"] = (llama, bench.dtype, context * 3 // 4 // 16)
    for name, (heads, cache_dtype, shared) in cases.items():
        paged = make([(context, 1)] * rows, heads, bench.device, bench.dtype, cache_dtype=cache_dtype, shared=shared)
        tuning = bench.configurations.attention("decode", heads.dim, heads.group, cache_dtype)
        ours = plan(paged, tuning, target.processors, prefixes=shared > 0)
        taken = seconds_of(ours, bench.device, bench.seconds)
        section.add(
            f"{name}: of copy bandwidth", paged.read_bytes / taken / copy, "share", detail=f"{taken * 1e6:.1f} us"
        )
