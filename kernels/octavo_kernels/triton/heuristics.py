"""Launch parameters by rule, where no table has an entry: what fits registers and shared memory and fills the device.

The rules come from what compiles without spilling on each target; what is measured goes to the tables.
"""

from __future__ import annotations

import math
from typing import Final

from octavo_kernels.triton.attention_plan import AttentionTuning
from octavo_kernels.triton.grouped import GroupedTuning
from octavo_kernels.triton.linear import LinearTuning
from octavo_kernels.triton.lora import LoraTuning
from octavo_kernels.triton.rope_cache import RopeCacheTuning
from octavo_kernels.triton.rows import RowsTuning
from octavo_kernels.triton.targets import INTERPRETER, Target

SPLITS: Final = (1, 2, 4, 8)
"""Ranges that a product's inputs are split into."""
PROGRAMS_PER_PROCESSOR: Final = 2
"""Programs that a product of few rows has at least: so many must read at once to use the bandwidth of the memory."""
STEPS_OF_SPLIT: Final = 4
"""Steps of block_k that a range of a split product has at least."""


def attention(target: Target, step: str, head_dim: int, group: int, cache_bytes: int) -> AttentionTuning:
    """Return the attention of a class: decode reads much and computes little, prefill reuses each key for many queries.

    The invariant step joins partial results within the program, which takes the registers of a second result.
    """
    amd, narrow = target.backend == "hip", head_dim > 128
    if target.name == INTERPRETER.name:
        return AttentionTuning(group, 64, 4, 1)
    if cache_bytes == 4:
        return AttentionTuning(group, 16, 8, 2)
    if step == "decode":
        return AttentionTuning(group, 32 if narrow else 64, 4, 2 if amd else 3)
    if step == "invariant" and narrow:
        return AttentionTuning(32, 32 if amd else 16, 4 if amd else 8, 2)
    return AttentionTuning(64, 32, 4 if amd else 8, 2)


def linear(target: Target, rows: int, features: int, inputs: int, size: int) -> LinearTuning:
    """Return the product of rows (a class; 0: any number) of `size` bytes a value by a weight [features, inputs]."""
    base = linear_base(target, rows, size)
    tiles = math.ceil(features / base.block_n) * math.ceil(rows / base.block_m)
    split = 1
    while (
        split < linear_most_splits(rows, size)
        and tiles * split < PROGRAMS_PER_PROCESSOR * target.processors
        and inputs // (2 * split) >= STEPS_OF_SPLIT * base.block_k
    ):
        split *= 2
    return base._replace(split_k=split)


def linear_base(target: Target, rows: int, size: int) -> LinearTuning:
    """Return the tile of a class of rows, not split."""
    stages = 2 if target.backend == "hip" else 4 if rows == 16 else 3
    if target.name == INTERPRETER.name:
        return LinearTuning(rows or 64, 128, 128, 1, 4, 1)
    if size == 4:
        return LinearTuning(16, 64, 32, 1, 4, 2)
    if rows in (16, 32):
        return LinearTuning(rows, 64, 128, 1, 4, stages)
    return LinearTuning(64, 64, 64, 1, 4, stages) if rows == 64 else LinearTuning(64, 128, 64, 1, 8, stages)


def linear_most_splits(rows: int, size: int) -> int:
    """Return the most ranges of a class of rows: what is split is summed through memory, at a price by the row.

    float32, which no one serves in a hurry, is not split.
    """
    return {16: 8, 32: 4, 64: 2}.get(rows, 1) if size == 2 else 1


def few_rows(kind: str) -> int:
    """Return the most rows for which a weight is multiplied as it is stored; more go to the vendor's library."""
    return 0 if kind == "dense" else 128


def grouped(target: Target, rows: int, size: int) -> GroupedTuning:
    """Return the product of blocks of a class of rows (0: any number) by a weight of their own each."""
    base = linear_base(target, 32 if rows == 0 else rows, size)
    return GroupedTuning(base.block_m, base.block_n, base.block_k, base.num_warps, base.num_stages)


def lora(rank: int, rows: int, size: int) -> LoraTuning:
    """Return the adapters' products for a rank. What bits depend on is the same for any rows."""
    block_m = 16 if rows <= 64 or size == 4 else 32
    return LoraTuning(block_m, 64, 64 if size == 4 else 128, min(rank, 32), 8, 4, 2)


def rows(width: int) -> RowsTuning:
    """Return the row kernels' cut for a width: a norm keeps its row in registers, 32 values a thread at the most."""
    return RowsTuning(1024, min(max(width // 1024, 4), 16))


def rope_cache(head_dim: int) -> RopeCacheTuning:
    """Return the heads of a program: 512 values."""
    return RopeCacheTuning(max(512 // head_dim, 2), 2)
