"""What `--tune` measures: the classes of shapes of the models that are served, the most important first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from benchmarks.on_gpu.checks_case import values
from benchmarks.on_gpu.machine import Bench
from benchmarks.on_gpu.paged import Heads, make, plan
from benchmarks.on_gpu.products import LAYER, TINY, copies
from benchmarks.on_gpu.timing import in_turn, seconds_of
from benchmarks.on_gpu.tune_class import Class, Runs, chain
from torch import Tensor

from octavo_kernels.triton.configurations import ANY_ROWS, FewRows
from octavo_kernels.triton.experts import experts, route
from octavo_kernels.triton.linear import linear, linear_many
from octavo_kernels.triton.rope_cache import rope_and_cache
from octavo_kernels.triton.rows import rms_norm, silu_mul
from octavo_kernels.triton.sampling import ROW_WORDS, Draw, pack_rows, rows_in, sample, workspace
from octavo_kernels.triton.weights import quantize


def classes(bench: Bench) -> Iterator[Class]:
    """Yield the classes."""
    yield from chain(_attention(bench), _linear(bench), _grouped(bench), _rows(bench), _few_rows(bench))


def _attention(bench: Bench) -> Iterator[Class]:
    dtypes = [bench.dtype, *((torch.float8_e4m3fn,) if bench.configurations.target.fp8 else ())]
    for dim, dtype, step in product(bench.pick((128, 64), (16,)), dtypes, ("decode", "prefill", "invariant")):
        heads = bench.pick(Heads(32, 8, dim), Heads(4, 2, dim))
        used = bench.configurations.attention(step, dim, heads.group, dtype)
        shape = {"step": step, "head_dim": max(dim, 64), "group": 16, "cache_bytes": dtype.itemsize}
        axes = {
            "block_m": (16, 32) if step == "decode" else (32, 64, 128),
            "block_n": (32, 64, 128),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4),
        }
        rows = {
            "decode": bench.pick(([(8192, 1)] * 64, [(65536, 1)]), ([(40, 1)],)),
            "prefill": bench.pick(([(2048, 2048)], [(18432, 2048)]), ([(20, 9)],)),
            "invariant": bench.pick(([(4096, 1)] * 64, [(6144, 2048)]), ([(20, 9)],)),
        }[step]
        yield Class("attention", shape, used, _few(bench, axes), _attention_runs(bench, heads, dtype, step, rows))


def _attention_runs(bench: Bench, heads: Heads, cache: torch.dtype, step: str, rows: Any) -> Callable[[Any], Runs]:
    cases = [make(each, heads, bench.device, bench.dtype, cache_dtype=cache) for each in rows]
    processors = bench.configurations.target.processors
    return lambda tuning: [plan(case, tuning, processors, invariant=step == "invariant") for case in cases]


def _linear(bench: Bench) -> Iterator[Class]:
    kinds = [kind for kind in ("int4", "int8", "fp8") if kind in bench.configurations.kinds()]
    layer = bench.pick(LAYER, TINY)
    for kind, rows in product((*kinds, "dense"), (16, 64, 32, 128, ANY_ROWS)):
        if kind == "dense" and rows != ANY_ROWS:
            continue  # the library multiplies these
        for features, inputs in layer.values():
            invariant = rows == ANY_ROWS
            used = bench.configurations.linear(kind, rows or 16, features, inputs, bench.dtype, invariant=invariant)
            shape = {"kind": kind, "rows": rows, "bytes": bench.dtype.itemsize, "features": features, "inputs": inputs}
            axes = {
                "split_k": (1, 2, 4, 8) if rows in (16, 32) else (1, 2) if rows == 64 else (1,),
                "block_n": (32, 64, 128),
                "block_k": (64, 128, 256),
                "num_warps": (4, 8),
                "num_stages": (3, 4, 5),
            }
            yield Class("linear", shape, used, _few(bench, axes), _linear_runs(bench, kind, rows, features, inputs))
            if bench.tiny:
                return


def _linear_runs(bench: Bench, kind: str, rows: int, features: int, inputs: int) -> Callable[[Any], Runs]:
    weights = copies(bench, kind, features, inputs)
    counts = (rows,) if rows else bench.pick((1, 64), (1, 3))

    def build(tuning: Any) -> Runs:
        def one(x: Tensor, out: Tensor) -> Callable[[], Tensor]:
            turn = in_turn(len(weights))

            def all_of_them() -> Tensor:
                for _ in weights:
                    linear(x, weights[turn()], out, tuning=tuning)
                return out

            return all_of_them

        xs = [values(bench, count, inputs) for count in counts]
        return [one(x, x.new_empty(len(x), features)) for x in xs]

    return build


def _grouped(bench: Bench) -> Iterator[Class]:
    count, each, hidden, inner = bench.pick((128, 8, 2048, 768), (4, 2, 64, 32))
    for kind, tokens in product(bench.configurations.kinds(), bench.pick((16, 512, 2048), (3,))):
        used = bench.configurations.grouped(kind, tokens, each, count, bench.dtype)
        gate_up = quantize(values(bench, count, 2 * inner, hidden) * hidden**-0.5, kind)
        down = quantize(values(bench, count, hidden, inner, seed=1) * inner**-0.5, kind)
        x = values(bench, tokens, hidden, seed=2)
        chosen, shares = route(values(bench, tokens, count, dtype=torch.float32, seed=3), each, True)

        def build(
            tuning: Any, x: Any = x, up: Any = gate_up, down: Any = down, chosen: Any = chosen, shares: Any = shares
        ) -> Runs:
            return [lambda: experts(x, up, down, chosen, shares, tuning=tuning)]

        rows = -(-tokens * each // count)
        shape = {"kind": kind, "rows": next(c for c in (16, 32, 64, 128) if rows <= c or c == 128)}
        axes = {"block_n": (32, 64, 128), "block_k": (64, 128), "num_warps": (4, 8), "num_stages": (2, 3, 4)}
        yield Class("grouped", shape | {"bytes": bench.dtype.itemsize}, used, _few(bench, axes), build)


def _rows(bench: Bench) -> Iterator[Class]:
    for width in bench.pick((4096, 2048), (96,)):
        used = bench.configurations.rows(width)
        x, weight = values(bench, bench.pick(256, 3), width), values(bench, width, dtype=torch.float32)
        gate_up = values(bench, len(x), 2 * width)

        def build(tuning: Any, x: Any = x, weight: Any = weight, gate_up: Any = gate_up) -> Runs:
            return [
                lambda: rms_norm(x, weight, 1e-5, torch.empty_like(x), tuning=tuning),
                lambda: silu_mul(gate_up, torch.empty_like(x), tuning),
            ]

        axes = {"block": (512, 1024, 2048), "num_warps": (2, 4, 8, 16)}
        yield Class("rows", {"width": max(width, 1024)}, used, _few(bench, axes), build)
    yield _rope(bench)
    yield _sampling(bench)


def _rope(bench: Bench) -> Class:
    heads, dim, tokens = bench.pick((Heads(32, 8, 128), 128, 256), (Heads(4, 2, 16), 16, 3))
    qkv, angles = values(bench, tokens, (heads.query + 2 * heads.kv) * dim), values(bench, 300, dim // 2)
    cos, sin = angles.float().cos(), angles.float().sin()
    places = torch.arange(tokens, device=bench.device)
    cache = torch.zeros((tokens // 16 + 1, 2, heads.kv, 16, dim), dtype=bench.dtype, device=bench.device)
    q = qkv.new_empty(tokens, heads.query, dim)

    def build(tuning: Any) -> Runs:
        return [lambda: rope_and_cache(qkv, places.int(), places, cos, sin, cache, q, tuning=tuning)]

    axes = {"heads": (2, 4, 8, 16), "num_warps": (1, 2, 4)}
    used = bench.configurations.rope_cache(dim)
    return Class("rope_cache", {"head_dim": max(dim, 64)}, used, _few(bench, axes), build)


def _sampling(bench: Bench) -> Class:
    rows, vocab = bench.pick((64, 151936), (2, 300))
    logits = values(bench, rows, vocab, dtype=torch.float32) * 3
    buffer = torch.empty((ROW_WORDS, rows), dtype=torch.int32)
    pack_rows([Draw(seed=row, temperature=0.8, top_k=50, top_p=0.95) for row in range(rows)], buffer.numpy())
    settings, out = rows_in(buffer.to(bench.device)), torch.empty(rows, dtype=torch.int32, device=bench.device)

    def build(tuning: Any) -> Runs:
        space = workspace(rows, vocab, bench.device, tuning)
        return [lambda: sample(logits, settings, out, space, tuning=tuning)]

    axes = {"chunk": (2048, 4096, 8192), "part": (32, 64, 128), "num_warps": (4, 8, 16)}
    return Class("sampling", {}, bench.configurations.sampling(), _few(bench, axes), build)


def _few_rows(bench: Bench) -> Iterator[Class]:
    """Up to how many rows a weight is multiplied as it is stored: the last class of rows at which that is faster."""
    if bench.tiny:
        return
    features, inputs = LAYER["gate_up"]
    scratch = torch.empty((64 << 20) // 2 // inputs, inputs, dtype=bench.dtype, device=bench.device)
    for kind in bench.configurations.kinds():
        if kind == "dense":
            continue
        weight, most = quantize(values(bench, features, inputs), kind), 0
        for rows in (16, 32, 64, 128, 256):
            x = values(bench, rows, inputs)
            out, tuning = (
                x.new_empty(rows, features),
                bench.configurations.linear(kind, rows, features, inputs, x.dtype),
            )
            ours, library = (
                seconds_of(call, bench.device, bench.seconds / 4)
                for call in (
                    lambda x=x, w=weight, o=out, t=tuning: linear(x, w, o, tuning=t),
                    lambda x=x, w=weight, o=out: linear_many(x, w, scratch, o),
                )
            )
            if ours > library:
                break
            most = rows
        found = FewRows(most)
        yield Class("few_rows", {"kind": kind}, found, {}, lambda _, s=scratch: [lambda: s])


def _few(bench: Bench, axes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return all values to try, in the interpreter one: each takes long there, and none is faster."""
    return {name: found[:1] for name, found in axes.items()} if bench.tiny else axes
