"""A mixture of experts on the GPU: the router's choice, and each row through its experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_kernels.triton.grouped import GroupedTuning, grouped_linear, plan_groups
from octavo_kernels.triton.launch import launch
from octavo_kernels.triton.rows import gelu_tanh_mul, silu_mul
from octavo_kernels.triton.weights import Weight

ACTIVATIONS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}
"""Gated activations by name: of [rows, 2 · f] into [rows, f]."""


def route(logits: Tensor, top_k: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """Return the experts of each row, most probable first and of equal ones the first, and their weights.

    logits: [T, experts], contiguous. Weights are softmax(logits) of the chosen ones, divided by their sum if normalize.
    NaN is chosen last, and makes its row's weights NaN. Returns (int32 [T, top_k], float32 [T, top_k]).
    """
    if logits.dim() != 2 or not 1 <= top_k <= logits.shape[1] or not logits.is_contiguous():
        raise ValueError(
            f"{top_k} experts cannot be chosen by logits {tuple(logits.shape)}; give contiguous [T, experts]."
        )
    rows, experts = logits.shape
    chosen = logits.new_empty((rows, top_k), dtype=torch.int32)
    weights = logits.new_empty((rows, top_k), dtype=torch.float32)
    launch(
        _route, (rows,), logits, chosen, weights, experts,
        TOP_K=top_k, SLOTS=triton.next_power_of_2(top_k), EXPERTS=triton.next_power_of_2(experts), NORMALIZE=normalize,
        num_warps=1,
    )  # fmt: skip
    return chosen, weights


def experts(
    x: Tensor,
    gate_up: Weight,
    down: Weight,
    chosen: Tensor,
    weights: Tensor,
    out: Tensor | None = None,
    *,
    activation: str = "silu",
    tuning: GroupedTuning,
    down_tuning: GroupedTuning | None = None,
) -> Tensor:
    """Return the sum over j of weights[:, j] · down(act(gate · x) · up · x) of expert chosen[:, j], in this order.

    x: [T, d]; gate_up: [experts, 2 · f, d], gate above up; down: [experts, d, f]; chosen: int32 or int64 [T, k]; those
    outside 0..experts, as of experts on other ranks, add nothing; weights: float32 [T, k]; out: [T, d]. Both products
    share one plan: the tunings' block_m must be equal.
    """
    if gate_up.rows != 2 * down.columns or gate_up.columns != down.rows or gate_up.experts != down.experts:
        raise ValueError(
            f"Experts gate_up [{gate_up.experts}, {gate_up.rows}, {gate_up.columns}] and down [{down.experts}, "
            f"{down.rows}, {down.columns}] do not fit; they are [experts, 2 · f, d] and [experts, d, f]."
        )
    if gate_up.experts is None or chosen.dim() != 2 or chosen.shape != weights.shape or len(chosen) != len(x):
        raise ValueError(
            f"Choices and weights must be [{x.shape[0]}, k] of stacked experts, not {tuple(chosen.shape)} and "
            f"{tuple(weights.shape)}."
        )
    if activation not in ACTIVATIONS:
        raise ValueError(f"There is no activation {activation!r}; take one of {', '.join(ACTIVATIONS)}.")
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    if out.shape != x.shape or (len(out) and out.stride(1) != 1) or not weights.is_contiguous():
        raise ValueError(f"out must be {tuple(x.shape)} with contiguous features, and the weights contiguous.")
    plan = plan_groups(chosen, gate_up.experts, tuning.block_m)
    both = grouped_linear(x, gate_up, plan, tuning=tuning)
    hidden = ACTIVATIONS[activation](both, both.new_empty((both.shape[0], down.columns)))
    results = grouped_linear(hidden, down, plan, tuning=down_tuning or tuning)
    width = x.shape[1]
    launch(
        _combine, (len(x), triton.cdiv(width, _WIDTH)), results, chosen, weights, out, width, gate_up.experts,
        out.stride(0), TOP_K=chosen.shape[1], BLOCK=_WIDTH, num_warps=4,
    )  # fmt: skip
    return out


_WIDTH = 512


@triton.jit
def _route(
    logits: tl.tensor,
    chosen: tl.tensor,
    weights: tl.tensor,
    experts: tl.tensor,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    NORMALIZE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, EXPERTS)
    slot = tl.arange(0, SLOTS)
    score = tl.load(logits + row * experts + index, mask=index < experts, other=float("-inf")).to(tl.float32)
    powers = tl.exp(score - tl.max(score, axis=0))
    powers = powers / tl.sum(powers, axis=0)
    # NaN compares with nothing: it would leave no index to choose.
    score = tl.where(score == score, score, float("-inf"))
    free = index < experts
    best = tl.zeros([SLOTS], dtype=tl.int32)
    shares = tl.zeros([SLOTS], dtype=tl.float32)
    for choice in tl.static_range(TOP_K):
        top = tl.max(tl.where(free, score, float("-inf")), axis=0)
        expert = tl.min(tl.where(free & (score == top), index, EXPERTS), axis=0)
        free = free & (index != expert)
        best = tl.where(slot == choice, expert, best)
        shares = tl.where(slot == choice, tl.sum(tl.where(index == expert, powers, 0.0), axis=0), shares)
    if NORMALIZE:
        shares = shares / tl.sum(shares, axis=0)
    tl.store(chosen + row * TOP_K + slot, best, mask=slot < TOP_K)
    tl.store(weights + row * TOP_K + slot, shares, mask=slot < TOP_K)


@triton.jit
def _combine(
    results: tl.tensor,  # [rows · TOP_K, width]
    chosen: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    width: tl.tensor,
    experts: tl.tensor,
    out_stride: tl.tensor,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for choice in tl.static_range(TOP_K):
        expert = tl.load(chosen + row * TOP_K + choice)
        # Nothing was written for a choice of no expert.
        there = at < tl.where((expert >= 0) & (expert < experts), width, 0)
        result = tl.load(results + (row * TOP_K + choice) * width + at, mask=there, other=0.0).to(tl.float32)
        weight = tl.load(weights + row * TOP_K + choice)
        total += tl.where(there, result * weight, 0.0)
    tl.store(out + row * out_stride + at, total.to(out.dtype.element_ty), mask=at < width)
