"""One tile of weight · xᵀ, for every kind of weight: what linear layers, experts and adapters share.

The weight is the left operand: its rows fill the tall side of the matrix units' shapes, so that a batch of 16 rows, the
narrow side, wastes nothing, and dequantised weights go into them straight from registers. The sum over inputs runs in
steps of BLOCK_K from `first` to `last`, in order, whoever else is in the batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.triton.weights import GROUP, Weight


@triton.jit
def accumulate(
    acc: tl.tensor,  # [BLOCK_N, BLOCK_M] float32
    x: tl.tensor,  # pointer to [rows, inputs]
    rows: tl.tensor,  # [BLOCK_M], rows of x
    live: tl.tensor,  # [BLOCK_M], whether there is such a row
    stride: tl.tensor,
    values: tl.tensor,  # pointer to the weight, as its kind lays it out
    scales: tl.tensor,
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
            acc, x_rows, live, values, scales, n, features, inputs, first, last, KIND, BLOCK_K, EVEN, PRECISION
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
    """`accumulate` over groups of 32 inputs: a step's are read together and multiplied one after another, by pairs."""
    cell = n[:, None] * 32 + tl.arange(0, 32)[None, :]
    lane = tl.arange(0, 32)[:, None]
    for step in range(first, last):
        for pair in tl.static_range(BLOCK_K // 64):
            span = step * (BLOCK_K // 64) + pair
            held = n < features if EVEN else n < tl.where(span * 64 < inputs, features, 0)
            at = span.to(tl.int64) * features
            if KIND == "int8":
                word = tl.load(scales + at + n, mask=held, other=0)[:, None]
            else:
                quants = tl.load(values + at * 32 + cell, mask=held[:, None], other=0)
            for half in tl.static_range(2):
                column = span * 64 + half * 32 + lane
                there = live[None, :] if EVEN else live[None, :] & (column < inputs)
                part = tl.load(x_rows[None, :] + column, mask=there, other=0.0)
                if KIND == "int8":
                    own = n < features if EVEN else n < tl.where(span * 64 + half * 32 < inputs, features, 0)
                    quants = tl.load(values + (at * 2 + half * features) * 32 + cell, mask=own[:, None], other=0)
                    weight = quants.to(tl.float32) * half_of(word, half)
                else:
                    word = tl.load(scales + at * 2 + half * features + n, mask=held, other=0)[:, None]
                    weight = nibble(quants, half, word)
                acc = dot(weight.to(x_rows.dtype.element_ty), part, acc, PRECISION)
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
def half_of(word: tl.tensor, half: tl.constexpr) -> tl.tensor:
    """Return the float16 in a word's lower (0) or upper (1) half as float32."""
    bits = word if half == 0 else word >> 16
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def nibble(quants: tl.tensor, half: tl.constexpr, word: tl.tensor) -> tl.tensor:
    """Return the values, float32, of the low (0) or high (1) nibbles: scale · q + offset, rounded once."""
    scale, offset = half_of(word, 0), half_of(word, 1)
    wide = quants.to(tl.int32)
    if half == 0:
        value = (wide & 0xF).to(tl.float32) * scale + offset
    else:
        # Sixteen times as much by a sixteenth of the scale: exact, and one shift per row instead of per value.
        value = (wide & 0xF0).to(tl.float32) * (scale * 0.0625) + offset
    return value


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


def step_inputs(weight: Weight, block_k: int) -> int:
    """Return the inputs of a step: block_k, but at least the pair of groups that is stored together.

    Raises ValueError for a step that is no power of two from 32 on.
    """
    if block_k < 32 or block_k & (block_k - 1):
        raise ValueError(f"A step of {block_k} inputs is not possible; take a block_k of 32, 64, 128 or 256.")
    return max(block_k, 2 * GROUP) if weight.grouped else block_k
