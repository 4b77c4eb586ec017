"""Linear layers of every kind of weight, mixtures of experts and adapters, on the device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from benchmarks.on_gpu.checks_case import BOUNDS, Case, difference, values
from benchmarks.on_gpu.machine import Bench

from octavo_kernels import reference
from octavo_kernels.triton.experts import experts, route
from octavo_kernels.triton.grouped import plan_groups
from octavo_kernels.triton.linear import dense, linear, linear_many
from octavo_kernels.triton.lora import lora, make_bank
from octavo_kernels.triton.weights import dequantize, quantize


def product_cases(bench: Bench) -> Iterator[Case]:
    """Yield the comparisons."""
    for kind in bench.configurations.kinds():
        for rows in bench.pick((1, 16, 64, 200), (1, 5)):
            yield Case(
                "linear", f"{kind}, {rows} rows", BOUNDS[torch.bfloat16], lambda k=kind, r=rows: _linear(bench, k, r)
            )
        yield Case("linear", f"{kind}, float32", BOUNDS[torch.float32], lambda k=kind: _linear(bench, k, 3, exact=True))
        yield Case("linear", f"{kind}, a row's bits in any company", 0.0, lambda k=kind: _company(bench, k))
        yield Case("linear_many", kind, BOUNDS[torch.bfloat16], lambda k=kind: _many(bench, k))
        yield Case("experts", kind, BOUNDS[torch.bfloat16] * 2, lambda k=kind: _experts(bench, k))
    yield Case("dense", "with a bias", BOUNDS[torch.bfloat16], lambda: _dense(bench))
    yield Case("route", "normalised", BOUNDS[torch.float32], lambda: _route(bench))
    yield Case("lora", "three adapters, some rows without", BOUNDS[torch.bfloat16] * 2, lambda: _lora(bench))


def _shape(bench: Bench) -> tuple[int, int]:
    """Return features and inputs, both no multiple of a tile."""
    return bench.pick((1000, 4128), (40, 96))


def _linear(bench: Bench, kind: str, rows: int, *, exact: bool = False) -> float:
    features, inputs = _shape(bench)
    dtype = torch.float32 if exact else bench.dtype
    weight = quantize(values(bench, features, inputs, dtype=dtype), kind)
    x, bias = values(bench, rows, inputs, dtype=dtype, seed=1), values(bench, features, dtype=torch.float32, seed=2)
    tuning = bench.configurations.linear(kind, rows, features, inputs, dtype)
    out = linear(x, weight, bias=bias, tuning=tuning)
    wanted = x.double().cpu() @ dequantize(weight).double().cpu().t() + bias.double().cpu()
    return difference(out, wanted)


def _company(bench: Bench, kind: str) -> float:
    features, inputs = _shape(bench)
    weight = quantize(values(bench, features, inputs), kind)
    x = values(bench, bench.pick(100, 5), inputs, seed=1)
    tuning = bench.configurations.linear(kind, len(x), features, inputs, bench.dtype, invariant=True)
    together = linear(x, weight, tuning=tuning)
    return 0.0 if torch.equal(linear(x[2:3], weight, tuning=tuning), together[2:3]) else 1.0


def _many(bench: Bench, kind: str) -> float:
    features, inputs = _shape(bench)
    weight = quantize(values(bench, features, inputs), kind)
    x = values(bench, bench.pick(300, 9), inputs, seed=1)
    # A scratch smaller than the weight: it is multiplied in pieces.
    scratch = torch.empty(features // 3, inputs, dtype=bench.dtype, device=bench.device)
    wanted = x.double().cpu() @ dequantize(weight).double().cpu().t()
    return difference(linear_many(x, weight, scratch), wanted)


def _dense(bench: Bench) -> float:
    features, inputs = _shape(bench)
    weight, x = quantize(values(bench, features, inputs), "dense"), values(bench, 33, inputs, seed=1)
    bias, out = values(bench, features, seed=2), torch.empty(33, features, device=bench.device)
    wanted = x.double().cpu() @ weight.values.double().cpu().t() + bias.double().cpu()
    return difference(dense(x, weight, out, bias=bias), wanted)


def _experts(bench: Bench, kind: str) -> float:
    count, each, hidden, inner = bench.pick((16, 4, 256, 192), (3, 2, 64, 32))
    gate_up = quantize(values(bench, count, 2 * inner, hidden) * hidden**-0.5, kind)
    down = quantize(values(bench, count, hidden, inner, seed=1) * inner**-0.5, kind)
    x, logits = values(bench, bench.pick(77, 5), hidden, seed=2), values(bench, bench.pick(77, 5), count, seed=3)
    chosen, shares = route(logits.float(), each, True)
    tuning = bench.configurations.grouped(kind, len(x), each, count, bench.dtype)
    out = experts(x, gate_up, down, chosen, shares, tuning=tuning)
    wanted = reference.experts(
        x.float().cpu(), dequantize(gate_up).cpu(), dequantize(down).cpu(), chosen.cpu().long(), shares.cpu()
    )
    return difference(out, wanted)


def _route(bench: Bench) -> float:
    logits = values(bench, bench.pick(33, 4), bench.pick(128, 8), dtype=torch.float32)
    chosen, shares = route(logits, bench.pick(8, 2), True)
    wanted, weights = reference.route(logits.cpu(), bench.pick(8, 2), True)
    return difference(shares, weights) if torch.equal(chosen.cpu().long(), wanted) else float("nan")


def _lora(bench: Bench) -> float:
    hidden, features, rows = bench.pick((4096, 6144, 50), (64, 48, 6))
    bank = make_bank(3, 16, hidden, features, bench.dtype, bench.device)
    adapters = []
    for slot, (rank, scale) in enumerate(((16, 2.0), (8, 0.5), (1, 1.0))):
        a, b = values(bench, rank, hidden, seed=slot) * hidden**-0.5, values(bench, features, rank, seed=9 + slot)
        bank.load(slot, a, b, scale)
        adapters.append((a.float().cpu(), b.float().cpu(), scale))
    index = (torch.arange(rows, device=bench.device) % 4 - 1).int()
    tuning = bench.configurations.lora(bank.rank, rows, bench.dtype)
    x, out = values(bench, rows, hidden, seed=4), values(bench, rows, features, seed=5)
    wanted = out.float().cpu()
    reference.lora(x.float().cpu(), adapters, index.cpu(), wanted)
    lora(x, bank, plan_groups(index, bank.slots, tuning.block_m), out, tuning=tuning)
    return difference(out, wanted)
