"""One tile of weight · xᵀ, for every kind of weight: what linear layers, experts and adapters share.

The weight is the left operand: its rows fill the tall side of the matrix units' shapes, so that a batch of 16 rows, the
narrow side, wastes nothing, and dequantised weights go into them straight from registers. The sum over inputs runs in
steps of BLOCK_K from `first` to `last`, in order, whoever else is in the batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.triton.weights import Weight


@triton.jit
def accumulate(
    acc: tl.tensor,  # [BLOCK_N, BLOCK_M] float32
    x: tl.tensor,  # pointer to [rows, inputs]
    rows: tl.tensor,  # [BLOCK_M], rows of x
    live: tl.tensor,  # [BLOCK_M], whether there is such a row
    stride: tl.tensor,
    values: tl.tensor,  # pointer to the weight, as its kind lays it out
    scales: tl.tensor,
    offsets: tl.tensor,
    n: tl.tensor,  # [BLOCK_N], rows of the weight
    features: tl.tensor,
    inputs: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    KIND: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,  # whether BLOCK_K divides the inputs
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """Return acc + weight[n] · x[rows]ᵀ over the inputs of steps first..last; fp8's row scales are left to `finish`."""
    x_rows = x + rows.to(tl.int64) * stride
    if KIND == "int8" or KIND == "int4":
        acc = _accumulate_groups(
            acc, x_rows, live, values, scales, offsets, n, features, inputs, first, last, KIND, BLOCK_K, EVEN, PRECISION
        )
    else:
        k = tl.arange(0, BLOCK_K)
        w_rows = values + n.to(tl.int64) * inputs
        for step in range(first, last):
            column = step * BLOCK_K + k
            there = live[None, :] if EVEN else live[None, :] & (column < inputs)[:, None]
            held = (n < features)[:, None] if EVEN else (n < features)[:, None] & (column < inputs)[None, :]
            weight = tl.load(w_rows[:, None] + column[None, :], mask=held, other=0.0).to(x.dtype.element_ty)
            part = tl.load(x_rows[None, :] + column[:, None], mask=there, other=0.0)
            acc = dot(weight, part, acc, PRECISION)
    return acc


@triton.jit
def _accumulate_groups(
    acc: tl.tensor,
    x_rows: tl.tensor,
    live: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    offsets: tl.tensor,
    n: tl.tensor,
    features: tl.tensor,
    inputs: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    KIND: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """`accumulate` over groups of 32 inputs: a step's groups are read together and multiplied one after another."""
    GROUPS: tl.constexpr = BLOCK_K // 32
    BYTES: tl.constexpr = 32 if KIND == "int8" else 16
    groups = inputs // 32
    cell = n[:, None] * BYTES + tl.arange(0, BYTES)[None, :]
    lane = tl.arange(0, BYTES)[:, None]
    for step in range(first, last):
        for part in tl.static_range(GROUPS):
            group = step * GROUPS + part
            there = live[None, :] if EVEN else live[None, :] & (group * 32 + lane < inputs)
            held = n < features if EVEN else n < tl.where(group < groups, features, 0)
            at = group.to(tl.int64) * features
            quants = tl.load(values + at * BYTES + cell, mask=held[:, None], other=0)
            scale = tl.load(scales + at + n, mask=held, other=0.0).to(tl.float32)[:, None]
            x_at = x_rows[None, :] + (group * 32 + lane)
            if KIND == "int8":
                weight = (quants.to(tl.float32) * scale).to(x_rows.dtype.element_ty)
                acc = dot(weight, tl.load(x_at, mask=there, other=0.0), acc, PRECISION)
            else:
                low, high = nibbles(quants, offsets is not None)
                low, high = low * scale, high * scale
                if offsets is not None:
                    offset = tl.load(offsets + at + n, mask=held, other=0.0).to(tl.float32)[:, None]
                    low, high = low + offset, high + offset
                low, high = low.to(x_rows.dtype.element_ty), high.to(x_rows.dtype.element_ty)
                acc = dot(low, tl.load(x_at, mask=there, other=0.0), acc, PRECISION)
                acc = dot(high, tl.load(x_at + 16, mask=there, other=0.0), acc, PRECISION)
    return acc


@triton.jit
def dot(a: tl.tensor, b: tl.tensor, acc: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """Return acc + a · b in float32, by `precision`."""
    if PRECISION == "widened":
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def nibbles(quants: tl.tensor, UNSIGNED: tl.constexpr) -> tl.tensor:
    """Return the low and the high nibbles as float32: 0..15, or -8..7."""
    low, high = (quants & 0xF).to(tl.float32), (quants >> 4).to(tl.float32)
    if not UNSIGNED:
        low, high = low - 8.0, high - 8.0
    return low, high


@triton.jit
def finish(acc: tl.tensor, scales: tl.tensor, n: tl.tensor, features: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """Return acc times what the kind leaves for the end: an fp8 weight's row scales."""
    if KIND == "fp8":
        acc = acc * tl.load(scales + n, mask=n < features, other=0.0)[:, None]
    return acc


def precision(dtype: torch.dtype) -> str:
    """Return how products of this type are computed: exactly, float32 never as TF32.

    Triton's interpreter multiplies the bit patterns of bfloat16: there operands are widened, which is exact as well.
    """
    return "widened" if dtype == torch.bfloat16 and triton.knobs.runtime.interpret else "ieee"


def check_block_k(weight: Weight, block_k: int) -> None:
    """Raise ValueError for a step that does not fit the weight's groups."""
    if block_k % 32 or block_k < 32:
        raise ValueError(f"A step of {block_k} inputs is no multiple of 32; take a block_k of 32, 64, 128 or 256.")
    if not weight.grouped and block_k & (block_k - 1):
        raise ValueError(f"A step of {block_k} inputs is no power of two; take a block_k of 32, 64, 128 or 256.")
