"""Norms, activations, copies, rotation and the cache's writes, the step's bookkeeping, on the device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from benchmarks.on_gpu.checks_case import BOUNDS, Case, difference, dtypes, values
from benchmarks.on_gpu.machine import Bench

from octavo_kernels import reference
from octavo_kernels.triton import rows, step
from octavo_kernels.triton.rope_cache import rope_and_cache

EPS = 1e-5


def row_cases(bench: Bench) -> Iterator[Case]:
    """Yield the comparisons."""
    width = bench.pick(4096, 96)
    for dtype in dtypes():
        yield Case("rms_norm", f"{dtype}", BOUNDS[dtype], lambda d=dtype: _norm(bench, d, width, False))
        yield Case("rms_norm", f"{dtype}, residual", BOUNDS[dtype], lambda d=dtype: _norm(bench, d, width, True))
    yield Case("rms_norm_add", "both norms", BOUNDS[bench.dtype], lambda: _norm_add(bench, width))
    yield Case("silu_mul", "", BOUNDS[bench.dtype], lambda: _silu(bench, width))
    yield Case("gelu_tanh_mul", "", BOUNDS[bench.dtype], lambda: _gelu(bench, width))
    yield Case("embed", "a part of the vocabulary", BOUNDS[bench.dtype], lambda: _embed(bench, width))
    yield Case("gather_rows", "", BOUNDS[bench.dtype], lambda: _gather(bench, width))
    yield Case("softcap", "", BOUNDS[torch.float32], lambda: _softcap(bench))
    for name, heads, kv_heads, dim, turned, normed, cache in (
        ("Llama's heads", 32, 8, 128, 64, False, None),
        ("QK-norm", 32, 4, 128, 64, True, None),
        ("a part rotated", 9, 3, 64, 24, False, None),
        ("fp8 cache", 16, 4, 256, 128, True, torch.float8_e4m3fn),
    ):
        if cache is None or bench.configurations.target.fp8:
            sizes = bench.pick((heads, kv_heads, dim, turned), (4, 2, 16, turned * 16 // dim // 2 * 2 or 2))
            bound = BOUNDS[bench.dtype] if cache is None else 0.08
            yield Case(
                "rope_and_cache", name, bound, lambda s=sizes, n=normed, c=cache: _rope(bench, *s, n, c or bench.dtype)
            )
    yield Case("prepare_step, finish_step, scatter", "three rows, one of nobody's", 0.0, lambda: _step(bench))


def _norm(bench: Bench, dtype: torch.dtype, width: int, residual: bool) -> float:
    x, stream = values(bench, 17, width, dtype=dtype), values(bench, 17, width, dtype=dtype, seed=1)
    weight = values(bench, width, dtype=torch.float32, seed=2)
    before = stream.clone()
    out = rows.rms_norm(x, weight, EPS, torch.empty_like(x), stream if residual else None)
    # The sum is rounded to the stream's type, and what is normalised is that.
    total = (before.float() + x.float()).to(dtype).float().cpu() if residual else x.float().cpu()
    wanted, _ = reference.rms_norm(total, weight.cpu(), EPS)
    return max(difference(out, wanted), difference(stream, total) if residual else 0.0)


def _norm_add(bench: Bench, width: int) -> float:
    x, stream = values(bench, 9, width), values(bench, 9, width, seed=1)
    weight, following = (values(bench, width, dtype=torch.float32, seed=seed) for seed in (2, 3))
    normed, _ = reference.rms_norm(x.float().cpu(), weight.cpu(), EPS)
    total = (stream.float().cpu() + normed).to(bench.dtype).float()
    wanted, _ = reference.rms_norm(total, following.cpu(), EPS)
    out = torch.empty_like(x)
    rows.rms_norm_add(x, weight, EPS, stream, following, out)
    return max(difference(stream, total), difference(out, wanted))


def _silu(bench: Bench, width: int) -> float:
    gate_up = values(bench, 19, 2 * width)
    out = rows.silu_mul(gate_up, gate_up.new_empty(19, width))
    return difference(out, reference.silu_mul(gate_up.float().cpu()))


def _gelu(bench: Bench, width: int) -> float:
    gate_up = values(bench, 19, 2 * width)
    gate, up = gate_up.double().cpu().chunk(2, dim=1)
    out = rows.gelu_tanh_mul(gate_up, gate_up.new_empty(19, width))
    return difference(out, torch.nn.functional.gelu(gate, approximate="tanh") * up)


def _embed(bench: Bench, width: int) -> float:
    table = values(bench, 50, width)
    tokens = torch.tensor([0, 7, 8, 30, 57, 58, 1000], dtype=torch.int32, device=bench.device)
    out = rows.embed(table, tokens, table.new_full((7, width), 3.0), 2.0, first_row=8)
    wanted = torch.zeros(7, width, dtype=torch.float64)
    for place, token in enumerate(tokens.tolist()):
        if 8 <= token < 58:
            wanted[place] = 2.0 * table[token - 8].double().cpu()
    return difference(out, wanted)


def _gather(bench: Bench, width: int) -> float:
    x = values(bench, 12, width)
    picked = torch.tensor([11, 0, 5, 5], dtype=torch.int32, device=bench.device)
    return difference(rows.gather_rows(x, picked, x.new_empty(4, width)), x[picked.long()])


def _softcap(bench: Bench) -> float:
    logits = values(bench, 3, bench.pick(151936, 300), dtype=torch.float32) * 40
    wanted = 30.0 * torch.tanh(logits.double().cpu() / 30.0)
    return difference(rows.softcap(logits, 30.0), wanted)


def _rope(
    bench: Bench, heads: int, kv_heads: int, dim: int, half: int, normed: bool, cache_dtype: torch.dtype
) -> float:
    tokens, blocks = 37, 8
    qkv = values(bench, tokens, (heads + 2 * kv_heads) * dim)
    angles = values(bench, 200, half, dtype=torch.float32, seed=1)
    positions = (torch.arange(tokens, device=bench.device) * 5).int()
    slots = torch.randperm(blocks * 16, generator=torch.Generator().manual_seed(0))[:tokens]
    slots[3] = -1
    weights = [values(bench, dim, dtype=torch.float32, seed=seed) if normed else None for seed in (2, 3)]
    cache = torch.zeros((blocks, 2, kv_heads, 16, dim), dtype=bench.dtype, device=bench.device).to(cache_dtype)
    q = qkv.new_empty(tokens, heads, dim)
    rope_and_cache(
        qkv, positions, slots.to(bench.device), angles.cos(), angles.sin(), cache, q, q_weight=weights[0],
        k_weight=weights[1], eps=EPS,
    )  # fmt: skip
    parts = qkv.float().cpu().view(tokens, -1, dim)
    own = [parts[:, :heads], parts[:, heads : heads + kv_heads], parts[:, heads + kv_heads :]]
    for place, weight in enumerate(weights):
        if weight is not None:
            flat, _ = reference.rms_norm(own[place].reshape(-1, dim), weight.cpu(), EPS)
            own[place] = flat.view(own[place].shape)
    picked = angles.cpu()[positions.cpu().long()]
    expected = torch.zeros(2, blocks, 16, kv_heads, dim)
    turned = reference.rope_and_cache(*own, picked.cos(), picked.sin(), expected, slots)
    written = cache.float().cpu().permute(1, 0, 3, 2, 4)
    return max(difference(q, turned), difference(written, expected))


def _step(bench: Bench) -> float:
    """Two steps of bookkeeping: 0 if every token, slot and length is as the host would have it, else 1."""
    device = bench.device
    ints = {"dtype": torch.int32, "device": device}
    known, lengths = torch.zeros(3, 40, **ints), torch.tensor([20, 5, 9], **ints)
    tables = torch.full((1, 3, 4), -1, **ints)
    step.scatter(known, torch.arange(120, device=device), torch.arange(120, **ints))
    step.scatter(tables, torch.tensor([0, 1, 4, 8], device=device), torch.tensor([7, 3, 5, 1], **ints))
    # slot, start, count, first token, adapter, samples, place of its logits, appends
    table = torch.tensor([[0, 16, 4, 0, -1, 1, 0, 1], [1, 2, 3, 4, 2, 1, 1, 1], [-1, 0, 1, 7, -1, 0, 2, 0]], **ints)
    tokens, positions, adapters = (torch.full((8,), -5, **ints) for _ in range(3))
    slots, live = torch.zeros(1, 8, dtype=torch.int64, device=device), torch.zeros(3, **ints)
    step.prepare_step(
        table, known, lengths, tables, tokens=tokens, positions=positions, slots=slots, adapters=adapters, live=live,
        max_position=40, longest=4,
    )  # fmt: skip
    results, sampled = torch.zeros(3, **ints), torch.tensor([77, 88, 99], **ints)
    step.finish_step(table, live, sampled, known, lengths, results)
    right = (
        tokens.tolist() == [16, 17, 18, 19, 42, 43, 44, 0]
        and positions.tolist()[:7] == [16, 17, 18, 19, 2, 3, 4]
        and slots[0].tolist() == [48, 49, 50, 51, 82, 83, 84, -1]
        and adapters.tolist() == [-1, -1, -1, -1, 2, 2, 2, -1]
        and live.tolist() == [1, 1, 0]
        and results.tolist() == [77, 88, step.VOID]
        and lengths.tolist() == [21, 6, 9]
        and [int(known[0, 20]), int(known[1, 5])] == [77, 88]
    )
    return 0.0 if right else 1.0
