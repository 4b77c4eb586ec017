"""Linear layers: weight-quantised products of few rows, and the ways to multiply many.

A batch of few rows is bound by reading the weights: `linear` reads them as stored and dequantises in registers (the
idea of Frantar et al., MARLIN, 2024). With many rows the matrix units are the limit: `linear_many` dequantises once to
a scratch and leaves the product to the vendor's library, as `dense` does for dense weights. The library picks its
algorithm by the number of rows: where output must not depend on the batch, `linear` with one tuning serves all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_kernels.triton.launch import launch
from octavo_kernels.triton.tile import accumulate, finish, half_of, nibble, precision, step_inputs
from octavo_kernels.triton.weights import DENSE_TYPES, Weight


class LinearTuning(NamedTuple):
    """How `linear` is launched.

    block_m rows of x by block_n output features a program, in steps of block_k inputs (of split_k equal ranges of them,
    each another program's, summed in order by a second kernel). Bits depend on block_k and split_k.
    """

    block_m: int = 16
    block_n: int = 64
    block_k: int = 128
    split_k: int = 1
    num_warps: int = 4
    num_stages: int = 4


def linear(
    x: Tensor, weight: Weight, out: Tensor | None = None, *, bias: Tensor | None = None, tuning: LinearTuning
) -> Tensor:
    """Return x · weightᵀ + bias, a row's bits independent of the other rows under one tuning.

    x: [T, K] float32, bfloat16 or float16, features contiguous; bias: [N]; out: [T, N] of any float type, features
    contiguous, or None for a new one in x's type. Raises ValueError for shapes that do not fit.
    """
    out = _checked(x, weight, out, bias)
    block_k = step_inputs(weight, tuning.block_k)
    tokens, features, split = x.shape[0], weight.rows, tuning.split_k
    target, row = out, out.stride(0)
    if split > 1:
        target, row = x.new_empty((split, tokens, features), dtype=torch.float32), features
    tiles = triton.cdiv(tokens, tuning.block_m), triton.cdiv(features, tuning.block_n)
    launch(
        _linear, (*tiles, split), x, weight.values, weight.scales, None if split > 1 else bias, target,
        tokens, features, weight.columns, x.stride(0), row,
        KIND=weight.kind, BLOCK_M=tuning.block_m, BLOCK_N=tuning.block_n, BLOCK_K=block_k, SPLIT_K=split,
        EVEN=weight.columns % block_k == 0, PRECISION=precision(x.dtype),
        num_warps=tuning.num_warps, num_stages=tuning.num_stages,
    )  # fmt: skip
    if split > 1:
        grid = (tokens, triton.cdiv(features, _SUM_BLOCK))
        launch(_sum_splits, grid, target, bias, out, tokens, features, out.stride(0), SPLIT_K=split, BLOCK=_SUM_BLOCK,
               num_warps=4)  # fmt: skip
    return out


def dense(x: Tensor, weight: Weight, out: Tensor | None = None, *, bias: Tensor | None = None) -> Tensor:
    """Return x · weightᵀ + bias by the vendor's library; the weight is dense and of x's type."""
    out = _checked(x, weight, out, bias)
    if weight.kind != "dense" or weight.values.dtype != x.dtype:
        raise ValueError(
            f"The library multiplies {x.dtype} by dense weights of the same type, not {weight.kind} "
            f"{weight.values.dtype}; call linear or linear_many."
        )
    return _library(x, weight.values, out, bias)


def linear_many(
    x: Tensor, weight: Weight, scratch: Tensor, out: Tensor | None = None, *, bias: Tensor | None = None
) -> Tensor:
    """Return x · weightᵀ + bias for many rows: the weight is dequantised into scratch, then multiplied by the library.

    scratch: [rows, K] of x's type, overwritten; with fewer rows than the weight has, it is done piece by piece.
    """
    out = _checked(x, weight, out, bias)
    if scratch.dtype != x.dtype or scratch.dim() != 2 or scratch.shape[1] != weight.columns or not scratch.shape[0]:
        raise ValueError(
            f"The scratch must be {x.dtype} [rows, {weight.columns}], not {scratch.dtype} {tuple(scratch.shape)}."
        )
    for first in range(0, weight.rows, scratch.shape[0]):
        last = min(first + scratch.shape[0], weight.rows)
        piece = scratch[: last - first]
        dequantize_into(weight, piece, first)
        _library(x, piece, out[:, first:last], None if bias is None else bias[first:last])
    return out


def dequantize_into(weight: Weight, out: Tensor, first_row: int = 0) -> None:
    """Write the values of the weight's rows first_row, first_row + 1, … to out [rows, K], contiguous, in its type."""
    if out.dim() != 2 or out.shape[1] != weight.columns or not out.is_contiguous() or weight.experts is not None:
        raise ValueError(
            f"Rows of a weight [{weight.rows}, {weight.columns}] go to a contiguous [rows, {weight.columns}], not "
            f"{tuple(out.shape)}."
        )
    if first_row < 0 or first_row + out.shape[0] > weight.rows:
        raise ValueError(f"Rows {first_row}..{first_row + out.shape[0]} are not within the weight's {weight.rows}.")
    if weight.kind == "dense":
        out.copy_(weight.values[first_row : first_row + out.shape[0]])
        return
    grid = (triton.cdiv(weight.columns, 256), triton.cdiv(out.shape[0], 32))
    launch(
        _dequantize, grid, weight.values, weight.scales, out, out.shape[0], first_row, weight.rows,
        weight.columns, KIND=weight.kind, BLOCK_N=32, BLOCK_K=256, num_warps=4,
    )  # fmt: skip


def _library(x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply by the library, whose products are of one type, into an out that may be of another."""
    target = out if out.dtype == x.dtype else x.new_empty(out.shape)
    if bias is None:
        torch.mm(x, weight.t(), out=target)
    else:
        torch.addmm(bias.to(x.dtype), x, weight.t(), out=target)
    return out if target is out else out.copy_(target)


def _checked(x: Tensor, weight: Weight, out: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return out, or a new one; raise ValueError unless the shapes fit."""
    if weight.experts is not None:
        raise ValueError(f"A stack of {weight.experts} weights is no linear layer; call grouped_linear.")
    if x.dim() != 2 or x.shape[1] != weight.columns or (x.shape[0] and x.stride(1) != 1):
        raise ValueError(f"x must be [T, {weight.columns}] with contiguous features, not {tuple(x.shape)}.")
    if bias is not None and (bias.shape != (weight.rows,) or not bias.is_contiguous()):
        raise ValueError(f"The bias must be a contiguous [{weight.rows}], not {tuple(bias.shape)}.")
    for what, tensor in (("x", x), ("bias", bias)):
        if tensor is not None and tensor.dtype not in DENSE_TYPES:
            raise ValueError(f"{what} must be float32, bfloat16 or float16, not {tensor.dtype}; convert it first.")
    if out is None:
        return x.new_empty((x.shape[0], weight.rows))
    if out.shape != (x.shape[0], weight.rows) or (x.shape[0] and out.stride(1) != 1):
        raise ValueError(f"out must be [{x.shape[0]}, {weight.rows}] with contiguous features, not {tuple(out.shape)}.")
    return out


_SUM_BLOCK = 512


@triton.jit(do_not_specialize=["tokens"])
def _linear(
    x: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    tokens: tl.tensor,
    features: tl.tensor,
    inputs: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    KIND: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    # Tiles of rows change fastest: those that share a tile of the weight run together and find it in the cache.
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    live = rows < tokens
    steps = tl.cdiv(inputs, BLOCK_K)
    share = tl.cdiv(steps, SPLIT_K)
    first = split * share
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    acc = accumulate(
        acc, x, rows, live, x_stride, values, scales, n, features, inputs, first,
        tl.minimum(first + share, steps), KIND, BLOCK_K, EVEN, PRECISION,
    )  # fmt: skip
    acc = finish(acc, scales, n, features, KIND)
    if bias is not None:
        acc += tl.load(bias + n, mask=n < features, other=0.0).to(tl.float32)[:, None]
    at = out + split.to(tl.int64) * tokens * features + rows.to(tl.int64)[None, :] * out_stride + n[:, None]
    tl.store(at, acc.to(out.dtype.element_ty), mask=live[None, :] & (n < features)[:, None])


@triton.jit(do_not_specialize=["tokens"])
def _sum_splits(
    partials: tl.tensor,  # [SPLIT_K, tokens, features] float32
    bias: tl.tensor,
    out: tl.tensor,
    tokens: tl.tensor,
    features: tl.tensor,
    out_stride: tl.tensor,
    SPLIT_K: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < features
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for split in tl.static_range(SPLIT_K):
        total += tl.load(partials + (row + split * tokens) * features + n, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + n, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "first_row"])
def _dequantize(
    values: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    first_row: tl.tensor,
    features: tl.tensor,
    inputs: tl.tensor,
    KIND: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    row = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n = first_row + row
    inside = (row < rows)[:, None]
    out_rows = out + row.to(tl.int64)[:, None] * inputs
    if KIND == "fp8":
        column = (tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K))[None, :]
        inside = inside & (column < inputs)
        value = tl.load(values + n.to(tl.int64)[:, None] * inputs + column, mask=inside, other=0.0).to(tl.float32)
        value = value * tl.load(scales + n, mask=row < rows, other=0.0)[:, None]
        tl.store(out_rows + column, value.to(out.dtype.element_ty), mask=inside)
    else:
        cell = n[:, None] * 32 + tl.arange(0, 32)[None, :]
        for part in tl.static_range(BLOCK_K // 32):
            group = tl.program_id(0) * (BLOCK_K // 32) + part
            column = group * 32 + tl.arange(0, 32)[None, :]
            held = inside & (column < inputs)
            single, pair = group.to(tl.int64) * features, (group // 2).to(tl.int64) * features
            if KIND == "int8":
                word = tl.load(scales + pair + n[:, None], mask=held, other=0)
                value = tl.load(values + single * 32 + cell, mask=held, other=0).to(tl.float32) * half_of(
                    word, part % 2
                )
            else:
                word = tl.load(scales + single + n[:, None], mask=held, other=0)
                value = nibble(tl.load(values + pair * 32 + cell, mask=held, other=0), part % 2, word)
            tl.store(out_rows + column, value.to(out.dtype.element_ty), mask=held)
