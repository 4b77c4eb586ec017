"""Low-rank adapters, another one for each row of a batch.

Adapters live in the slots of a bank on the device, padded to one rank. Rows are grouped by adapter once a step, and
each group goes through its two factors in two launches, as in Punica's SGMV (Chen et al., 2023) and S-LoRA (Sheng et
al., 2023): the shrink splits its long sum over programs, the expand sums their parts in order and adds to the output.
Rows without an adapter are in no group and cost nothing; a step without adapters is not to call at all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_kernels.triton.grouped import GroupedTuning, GroupPlan, launch_grouped
from octavo_kernels.triton.launch import launch
from octavo_kernels.triton.tile import dot, precision
from octavo_kernels.triton.weights import Weight


class LoraTuning(NamedTuple):
    """How `lora` is launched.

    block_m: rows of a block, the plan's too. The shrink: block_r ranks a program in steps of block_k inputs, split_k
    ranges of them. The expand: block_n output features a program in steps of block_r ranks. Bits depend on block_r,
    block_k and split_k.
    """

    block_m: int = 16
    block_n: int = 128
    block_k: int = 128
    block_r: int = 16
    split_k: int = 8
    num_warps: int = 4
    num_stages: int = 3


class LoraBank(NamedTuple):
    """The adapters of one linear layer: a [slots, rank, K], b [slots, N, rank], scales float32 [slots]."""

    a: Tensor
    b: Tensor
    scales: Tensor

    @property
    def slots(self) -> int:
        """How many adapters it holds."""
        return self.a.shape[0]

    @property
    def rank(self) -> int:
        """The largest rank it holds."""
        return self.a.shape[1]

    def load(self, slot: int, a: Tensor, b: Tensor, scale: float) -> None:
        """Put an adapter a [rank, K], b [N, rank] into a slot, in place: a captured graph sees it from then on."""
        rank = a.shape[0]
        if not 0 <= slot < self.slots:
            raise ValueError(f"The bank has slots 0..{self.slots - 1}, not {slot}.")
        if a.shape[1:] != self.a.shape[2:] or b.shape != (self.b.shape[1], rank) or rank > self.rank:
            raise ValueError(
                f"An adapter of at most rank {self.rank} is a [rank, {self.a.shape[2]}] and b [{self.b.shape[1]}, "
                f"rank], not {tuple(a.shape)} and {tuple(b.shape)}."
            )
        self.clear(slot)
        self.a[slot, :rank].copy_(a)
        self.b[slot, :, :rank].copy_(b)
        self.scales[slot].fill_(scale)

    def clear(self, slot: int) -> None:
        """Empty a slot: its adapter adds zero."""
        for part in self:
            part[slot].zero_()


def make_bank(
    slots: int, rank: int, inputs: int, features: int, dtype: torch.dtype, device: torch.device | str
) -> LoraBank:
    """Return an empty bank for adapters of at most `rank`, rounded up to a multiple of 16."""
    if slots < 1 or rank < 1:
        raise ValueError(f"A bank of {slots} slots of rank {rank} holds no adapter; take at least 1 of both.")
    rank = triton.cdiv(rank, 16) * 16
    return LoraBank(
        torch.zeros((slots, rank, inputs), dtype=dtype, device=device),
        torch.zeros((slots, features, rank), dtype=dtype, device=device),
        torch.zeros(slots, dtype=torch.float32, device=device),
    )


def lora(x: Tensor, bank: LoraBank, plan: GroupPlan, out: Tensor, *, tuning: LoraTuning) -> None:
    """Add scale · (x · aᵀ) · bᵀ of each row's adapter to out (Hu et al., LoRA, 2021).

    x: [T, K]; plan: `plan_groups(adapters, bank.slots, tuning.block_m)` of adapters int32 [T], negative: none; one
    serves all of a step's layers. out: [T, N], of any row stride (part of a joint q, k, v). A row's bits do not depend
    on the other rows.
    """
    tokens, (slots, rank, inputs), features = plan.rows, bank.a.shape, bank.b.shape[1]
    if plan.per_row != 1 or plan.num_weights != slots:
        raise ValueError(f"The plan must give each row one of {slots} slots, not {plan.per_row} of {plan.num_weights}.")
    if x.shape != (tokens, inputs) or out.shape != (tokens, features):
        raise ValueError(
            f"x and out must be [{tokens}, {inputs}] and [{tokens}, {features}], not {tuple(x.shape)} and "
            f"{tuple(out.shape)}."
        )
    if tokens and (x.stride(1) != 1 or out.stride(1) != 1):
        raise ValueError("x and out must have contiguous features; call .contiguous() first.")
    ranks = x.new_empty((tuning.split_k * tokens, rank), dtype=torch.float32)
    shrink = GroupedTuning(tuning.block_m, tuning.block_r, tuning.block_k, tuning.num_warps, tuning.num_stages)
    launch_grouped(x, Weight("dense", bank.a), plan, ranks, tuning.split_k, shrink)
    launch(
        _expand, (plan.choices.shape[0], triton.cdiv(features, tuning.block_n)),
        ranks, bank.b, bank.scales, plan.choices, plan.weights, plan.used, out, tokens, features, rank, out.stride(0),
        BLOCK_M=tuning.block_m, BLOCK_N=tuning.block_n, BLOCK_R=tuning.block_r, SPLIT_K=tuning.split_k,
        PRECISION=precision(bank.b.dtype), num_warps=tuning.num_warps, num_stages=tuning.num_stages,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens"])
def _expand(
    ranks: tl.tensor,  # [SPLIT_K, tokens, rank] float32
    b: tl.tensor,
    scales: tl.tensor,
    choices: tl.tensor,
    weights: tl.tensor,
    count: tl.tensor,
    out: tl.tensor,
    tokens: tl.tensor,
    features: tl.tensor,
    rank: tl.tensor,
    out_stride: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    SPLIT_K: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    if block >= tl.load(count):
        return
    slot = tl.load(weights + block).to(tl.int64)
    scale = tl.load(scales + slot)
    row = tl.load(choices + block * BLOCK_M + tl.arange(0, BLOCK_M))
    live = row >= 0
    row = row.to(tl.int64)[None, :]
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < features
    b_rows = b + (slot * features + n) * rank
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for start in range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        there = (r < rank)[:, None] & live[None, :]
        total = tl.zeros([BLOCK_R, BLOCK_M], dtype=tl.float32)
        for split in tl.static_range(SPLIT_K):
            total += tl.load(ranks + (row + split * tokens) * rank + r[:, None], mask=there, other=0.0)
        factor = tl.load(b_rows[:, None] + r[None, :], mask=inside[:, None] & (r < rank)[None, :], other=0.0)
        acc = dot(factor, (total * scale).to(b.dtype.element_ty), acc, PRECISION)
    at = out + row * out_stride + n[:, None]
    mask = live[None, :] & inside[:, None]
    acc += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(at, acc.to(out.dtype.element_ty), mask=mask)
