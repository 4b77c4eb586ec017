"""Products of rows with weights of their own: rows are sorted by weight on the device, then multiplied block by block.

Every row chooses up to k of several weights (a mixture's experts, or its adapter). `plan_groups` puts the choices of
one weight next to each other, padded to whole blocks of block_m: a counting sort, stable and without atomics, into
arrays whose size depends on the number of choices alone, so that a CUDA graph can replay it. `grouped_linear` then
multiplies one block by one weight; programs beyond the blocks in use end at once (as in Gale et al., MegaBlocks, 2023).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_kernels.triton.launch import launch
from octavo_kernels.triton.tile import accumulate, finish, precision, step_inputs
from octavo_kernels.triton.weights import Weight


class GroupedTuning(NamedTuple):
    """How `grouped_linear` is launched: as `LinearTuning`, block_m being the plan's too."""

    block_m: int = 16
    block_n: int = 64
    block_k: int = 128
    num_warps: int = 4
    num_stages: int = 4


class GroupPlan(NamedTuple):
    """Which choices each block multiplies, and by which weight; valid up to `used`, which only the device knows."""

    choices: Tensor
    """int32 [blocks, block_m]: row · k + j of the choices, -1 beyond a weight's last."""
    weights: Tensor
    """int32 [blocks]."""
    used: Tensor
    """int32 [1], blocks in use."""
    rows: int
    per_row: int
    num_weights: int

    @property
    def block_m(self) -> int:
        """Choices a block holds."""
        return self.choices.shape[1]


def most_blocks(choices: int, num_weights: int, block_m: int) -> int:
    """Return how many blocks any distribution of the choices can need."""
    if choices <= num_weights:
        return choices
    return num_weights + (choices - num_weights) // block_m


def plan_groups(chosen: Tensor, num_weights: int, block_m: int) -> GroupPlan:
    """Return the plan for chosen[row, j], the weight of each row's j-th choice; outside 0..num_weights: none.

    chosen: int32 or int64 [T, k] or [T], contiguous. Choices of one weight keep their order.
    """
    if chosen.dim() not in (1, 2) or chosen.dtype not in (torch.int32, torch.int64) or not chosen.is_contiguous():
        raise ValueError(f"Choices are contiguous int32 or int64 [T, k], not {chosen.dtype} {tuple(chosen.shape)}.")
    if num_weights < 1 or block_m < 1 or block_m & (block_m - 1):
        raise ValueError(f"A block of {block_m} of {num_weights} weights' rows is none; take a power of two.")
    rows, per_row = chosen.shape[0], chosen.shape[1] if chosen.dim() == 2 else 1
    total = rows * per_row
    blocks = most_blocks(total, num_weights, block_m)
    counts = chosen.new_empty(num_weights, dtype=torch.int32)
    plan = GroupPlan(
        chosen.new_empty((blocks, block_m), dtype=torch.int32),
        chosen.new_empty(blocks, dtype=torch.int32),
        chosen.new_empty(1, dtype=torch.int32),
        rows, per_row, num_weights,
    )  # fmt: skip
    launch(_count, (num_weights,), chosen, counts, total, BLOCK=_SCAN, num_warps=4)
    launch(
        _place, (num_weights,), chosen, counts, plan.choices, plan.weights, plan.used, total, num_weights,
        WEIGHTS=triton.next_power_of_2(num_weights), BLOCK_M=block_m, BLOCK=_SCAN, num_warps=4,
    )  # fmt: skip
    return plan


def grouped_linear(
    x: Tensor, weights: Weight, plan: GroupPlan, out: Tensor | None = None, *, tuning: GroupedTuning
) -> Tensor:
    """Return x · weightᵀ by each choice's weight: row i · k + j is for row i's j-th. Rows of no weight are not written.

    x: [T, K], or [T · k, K] with a row for every choice; weights: stacked [num_weights, N, K]; out: [T · k, N]. Bits of
    a row depend on it, its weight and the tuning alone.
    """
    total = plan.rows * plan.per_row
    if weights.experts != plan.num_weights:
        raise ValueError(f"The plan is for {plan.num_weights} stacked weights, not {weights.experts}; plan for these.")
    if x.dim() != 2 or x.shape[1] != weights.columns or x.shape[0] not in (plan.rows, total) or _strided(x):
        raise ValueError(
            f"x must be [{plan.rows}, {weights.columns}], or of {total} rows, with contiguous features, not "
            f"{tuple(x.shape)}."
        )
    if out is None:
        out = x.new_empty((total, weights.rows))
    if out.shape != (total, weights.rows) or _strided(out):
        raise ValueError(f"out must be [{total}, {weights.rows}] with contiguous features, not {tuple(out.shape)}.")
    launch_grouped(x, weights, plan, out, 1, tuning)
    return out


def launch_grouped(
    x: Tensor, weights: Weight, plan: GroupPlan, out: Tensor, split_k: int, tuning: GroupedTuning
) -> None:
    """Launch `grouped_linear` without its checks of shapes; split_k partial sums go to out [split_k · T · k, N]."""
    block_k = step_inputs(weights, tuning.block_k)
    if tuning.block_m != plan.block_m:
        raise ValueError(f"The plan has blocks of {plan.block_m} rows, the tuning of {tuning.block_m}; plan anew.")
    features = weights.rows
    launch(
        _grouped, (plan.choices.shape[0], triton.cdiv(features, tuning.block_n), split_k),
        x, weights.values, weights.scales, plan.choices, plan.weights, plan.used, out,
        plan.rows * plan.per_row, features, weights.columns, x.stride(0), out.stride(0),
        KIND=weights.kind, PER_ROW=1 if x.shape[0] == plan.rows * plan.per_row else plan.per_row,
        BLOCK_M=tuning.block_m, BLOCK_N=tuning.block_n, BLOCK_K=block_k, SPLIT_K=split_k,
        EVEN=weights.columns % block_k == 0, PRECISION=precision(x.dtype),
        num_warps=tuning.num_warps, num_stages=tuning.num_stages,
    )  # fmt: skip


def _strided(rows: Tensor) -> bool:
    return bool(rows.shape[0]) and rows.stride(1) != 1


_SCAN = 1024


@triton.jit(do_not_specialize=["total"])
def _count(chosen: tl.tensor, counts: tl.tensor, total: tl.tensor, BLOCK: tl.constexpr) -> None:
    weight = tl.program_id(0)
    found = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, total, BLOCK):
        at = start + tl.arange(0, BLOCK)
        found += (tl.load(chosen + at, mask=at < total, other=-1) == weight).to(tl.int32)
    tl.store(counts + weight, tl.sum(found, axis=0))


@triton.jit(do_not_specialize=["total"])
def _place(
    chosen: tl.tensor,
    counts: tl.tensor,
    choices: tl.tensor,
    weights: tl.tensor,
    count: tl.tensor,
    total: tl.tensor,
    num_weights: tl.tensor,
    WEIGHTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    # Each weight's program finds where its blocks begin, and walks over all choices for its own.
    weight = tl.program_id(0)
    index = tl.arange(0, WEIGHTS)
    blocks = tl.cdiv(tl.load(counts + index, mask=index < num_weights, other=0), BLOCK_M)
    first = tl.sum(tl.where(index < weight, blocks, 0), axis=0)
    last = first + tl.sum(tl.where(index == weight, blocks, 0), axis=0)
    if weight == 0:
        tl.store(count, tl.sum(blocks, axis=0))
    for block in range(first, last):
        tl.store(weights + block, weight)
    free = first * BLOCK_M
    for start in range(0, total, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mine = tl.load(chosen + at, mask=at < total, other=-1) == weight
        ones = mine.to(tl.int32)
        tl.store(choices + free + tl.cumsum(ones, axis=0) - 1, at, mask=mine)
        free += tl.sum(ones, axis=0)
    rest = free + tl.arange(0, BLOCK_M)
    tl.store(choices + rest, -1, mask=rest < last * BLOCK_M)


@triton.jit(do_not_specialize=["total"])
def _grouped(
    x: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    choices: tl.tensor,
    weights: tl.tensor,
    count: tl.tensor,
    out: tl.tensor,
    total: tl.tensor,
    features: tl.tensor,
    inputs: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    KIND: tl.constexpr,
    PER_ROW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    if block >= tl.load(count):
        return
    size = tl.load(weights + block).to(tl.int64) * features
    choice = tl.load(choices + block * BLOCK_M + tl.arange(0, BLOCK_M))
    live = choice >= 0
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    pairs = tl.cdiv(inputs, 64)
    values += size * (pairs * 32 if KIND == "int4" else inputs)
    if KIND == "fp8":
        scales += size
    elif KIND == "int8":
        scales += size * pairs
    elif KIND == "int4":
        scales += size * pairs * 2
    steps = tl.cdiv(inputs, BLOCK_K)
    share = tl.cdiv(steps, SPLIT_K)
    first = split * share
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    acc = accumulate(
        acc, x, choice // PER_ROW, live, x_stride, values, scales, n, features, inputs, first,
        tl.minimum(first + share, steps), KIND, BLOCK_K, EVEN, PRECISION,
    )  # fmt: skip
    acc = finish(acc, scales, n, features, KIND)
    at = out + (split.to(tl.int64) * total + choice.to(tl.int64))[None, :] * out_stride + n[:, None]
    tl.store(at, acc.to(out.dtype.element_ty), mask=live[None, :] & (n < features)[:, None])
