"""Products of few rows with quantised weights, against the vendor's library with the same weights in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.on_gpu.machine import Bench
from benchmarks.on_gpu.report import Section, sentence_of
from benchmarks.on_gpu.timing import in_turn, seconds_of

from octavo_kernels.triton.experts import experts, route
from octavo_kernels.triton.linear import linear
from octavo_kernels.triton.weights import Weight, quantize

LAYER = {"qkv": (6144, 4096), "output": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
"""A layer of Llama-3.1-8B: output features, inputs."""
TINY = {"qkv": (96, 64), "down": (64, 96)}
ROWS = (1, 8, 16, 64)
CACHE_BYTES = 128 << 20
"""More than a GPU's cache holds: copies of a smaller weight take turns, as layers do."""


def run(bench: Bench, section: Section) -> None:
    """Time a layer's products for each kind of weight and number of rows; then a mixture's experts."""
    layer = bench.pick(LAYER, TINY)
    rows_of = bench.pick(ROWS, (1, 3))
    library = dict.fromkeys(rows_of, 0.0)
    for features, inputs in layer.values():
        weights = [weight.values for weight in copies(bench, "dense", features, inputs)]
        for rows in rows_of:
            x = torch.randn(rows, inputs, device=bench.device, dtype=bench.dtype)
            out = torch.empty(rows, features, device=bench.device, dtype=bench.dtype)
            turn = in_turn(len(weights))
            library[rows] += _each(
                bench, lambda x=x, out=out, w=weights, t=turn: torch.mm(x, w[t()].t(), out=out), len(weights)
            )
        del weights
    for rows, taken in library.items():
        moved = sum(features * inputs for features, inputs in layer.values()) * bench.dtype.itemsize
        detail = f"{moved / taken / bench.copy:.0%} of copy bandwidth"
        section.add(f"the library, bf16, {rows} rows, a layer", taken * 1e6, "us", detail=detail)
    for kind in ("int8", "int4", "fp8"):
        if kind not in bench.configurations.kinds():
            section.remark(f"{kind} is not served on {bench.configurations.target.name}")
            continue
        _kind(bench, section, kind, library, layer)
    _mixture(bench, section)


def copies(bench: Bench, kind: str, features: int, inputs: int) -> list[Weight]:
    """Return random weights of a kind, so many that together they exceed the device's cache."""
    first = quantize(torch.randn(features, inputs, device=bench.device, dtype=bench.dtype) * 0.02, kind)
    count = 2 if bench.tiny else max(1, -(-CACHE_BYTES // first.nbytes))
    others = [
        first._replace(
            **{name: part.clone() for name, part in first._asdict().items() if isinstance(part, torch.Tensor)}
        )
        for _ in range(count - 1)
    ]
    return [first, *others]


def _each(bench: Bench, call: Callable[[], Any], count: int) -> float:
    """Return the seconds of one call, of as many as there are weights."""

    def all_of_them() -> None:
        for _ in range(count):
            call()

    return seconds_of(all_of_them, bench.device, bench.seconds / 4) / count


def _kind(
    bench: Bench, section: Section, kind: str, library: dict[int, float], layer: dict[str, tuple[int, int]]
) -> None:
    ours, moved = dict.fromkeys(library, 0.0), 0
    for features, inputs in layer.values():
        weights = copies(bench, kind, features, inputs)
        moved += weights[0].nbytes
        for rows in library:
            x = torch.randn(rows, inputs, device=bench.device, dtype=bench.dtype)
            out = torch.empty(rows, features, device=bench.device, dtype=bench.dtype)
            tuning = bench.configurations.linear(kind, rows, features, inputs, bench.dtype)
            turn = in_turn(len(weights))
            ours[rows] += _each(
                bench, lambda x=x, out=out, w=weights, t=turn, c=tuning: linear(x, w[t()], out, tuning=c), len(weights)
            )
        del weights
    for rows, taken in ours.items():
        detail = f"{taken * 1e6:.1f} us, {moved / taken / bench.copy:.0%} of copy bandwidth"
        section.add(
            f"{kind}, {rows} rows, a layer: the library's bf16 / ours", library[rows] / taken, "x", detail=detail
        )


def _mixture(bench: Bench, section: Section) -> None:
    """A layer of Qwen3-30B-A3B's experts: share of the bandwidth, of the experts that are chosen at least once."""
    count, chosen_each, hidden, inner = bench.pick((128, 8, 2048, 768), (4, 2, 64, 32))
    gate_up, down = (
        quantize(torch.randn(count, *size, device=bench.device, dtype=bench.dtype) * 0.02, "dense")
        for size in ((2 * inner, hidden), (hidden, inner))
    )
    for rows in bench.pick(ROWS, (3,)):
        x = torch.randn(rows, hidden, device=bench.device, dtype=bench.dtype)
        logits = torch.randn(rows, count, device=bench.device)
        chosen, shares = route(logits, chosen_each, True)
        tuning = bench.configurations.grouped("dense", rows, chosen_each, count, bench.dtype)

        def call(x: Any = x, chosen: Any = chosen, shares: Any = shares, tuning: Any = tuning) -> None:
            experts(x, gate_up, down, chosen, shares, tuning=tuning)

        try:
            taken = seconds_of(call, bench.device, bench.seconds / 2)
        except Exception as error:  # noqa: BLE001 - told, and the next is timed
            section.fail(f"the experts of {rows} rows did not run: {sentence_of(error)}")
            continue
        used = len(torch.unique(chosen)) * (gate_up.nbytes + down.nbytes) / count
        share = used / taken / bench.copy
        section.add(f"experts bf16, {rows} rows: of copy bandwidth", share, "share", detail=f"{taken * 1e6:.1f} us")
