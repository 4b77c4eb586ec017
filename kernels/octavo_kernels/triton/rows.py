"""What is done to each row on its own: norms, the gated activation, embedding, gathering, the cap on logits.

Inputs and outputs are float32, bfloat16 or float16, rows of stride 1 in the last dimension; arithmetic is float32, each
operation rounded on its own. A row's result depends on that row alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_kernels.triton.launch import launch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class RowsTuning(NamedTuple):
    """How rows are cut: elements of one program where a row may be split, and warps. A norm takes its row whole."""

    block: int = 1024
    num_warps: int = 4


DEFAULT_TUNING = RowsTuning()


@triton.jit
def _rms_norm(
    x: tl.tensor, weight: tl.tensor, residual: tl.tensor, next_weight: tl.tensor, out: tl.tensor,
    x_stride: tl.tensor, residual_stride: tl.tensor, out_stride: tl.tensor, width: tl.tensor, eps: tl.tensor,
    MODE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """MODE "plain": out = norm(x). "before": residual += x, out = norm(residual). "after": residual += norm(x), and
    out = norm(residual) by next_weight if there is one."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    values = tl.load(x + row * x_stride + at, inside, 0.0).to(tl.float32)
    scale = tl.load(weight + at, inside, 0.0).to(tl.float32)
    if MODE != "plain":
        stream = residual + row * residual_stride + at
        before = tl.load(stream, inside, 0.0).to(tl.float32)
    if MODE == "before":
        # What is normalised is what the stream holds, rounded to its type.
        total = (before + values).to(residual.dtype.element_ty)
        tl.store(stream, total, inside)
        values = total.to(tl.float32)
    root = tl.sqrt_rn(tl.sum(values * values, 0) / width + eps)
    normed = tl.div_rn(values, root) * scale
    if MODE == "after":
        total = (before + normed).to(residual.dtype.element_ty)
        tl.store(stream, total, inside)
        if next_weight is not None:
            values = total.to(tl.float32)
            root = tl.sqrt_rn(tl.sum(values * values, 0) / width + eps)
            normed = tl.div_rn(values, root) * tl.load(next_weight + at, inside, 0.0).to(tl.float32)
            tl.store(out + row * out_stride + at, normed.to(out.dtype.element_ty), inside)
    else:
        tl.store(out + row * out_stride + at, normed.to(out.dtype.element_ty), inside)


@triton.jit
def _sigmoid(x: tl.tensor) -> tl.tensor:
    # Of -|x|, which does not overflow.
    small = tl.exp(-tl.abs(x))
    return tl.div_rn(tl.where(x < 0, small, 1.0), 1.0 + small)


@triton.jit
def _gated(
    gate_up: tl.tensor,
    out: tl.tensor,
    gate_up_stride: tl.tensor,
    out_stride: tl.tensor,
    width: tl.tensor,
    TANH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    pair = gate_up + row * gate_up_stride + at
    gate = tl.load(pair, inside, 0.0).to(tl.float32)
    up = tl.load(pair + width, inside, 0.0).to(tl.float32)
    if TANH:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        # (1 + tanh(y)) / 2 is the logistic function of 2y.
        active = gate * _sigmoid(2.0 * inner)
    else:
        active = gate * _sigmoid(gate)
    tl.store(out + row * out_stride + at, (active * up).to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize_on_alignment=["indices"])
def _take_rows(
    table: tl.tensor, indices: tl.tensor, out: tl.tensor, table_stride: tl.tensor, out_stride: tl.tensor,
    width: tl.tensor, first_row: tl.tensor, num_rows: tl.tensor, scale: tl.tensor, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices + row).to(tl.int64) - first_row
    own_width = tl.where((index >= 0) & (index < num_rows), width, 0)
    values = tl.load(table + index * table_stride + at, at < own_width, 0.0).to(tl.float32) * scale
    tl.store(out + row * out_stride + at, values.to(out.dtype.element_ty), at < width)


@triton.jit
def _softcap(logits: tl.tensor, stride: tl.tensor, width: tl.tensor, cap: tl.tensor, BLOCK: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(logits + row * stride + at, at < width, 0.0).to(tl.float32)
    small = tl.exp(-2.0 * tl.abs(values / cap))
    tanh = tl.div_rn(1.0 - small, 1.0 + small)
    tl.store(
        logits + row * stride + at, (tl.where(values < 0, -tanh, tanh) * cap).to(logits.dtype.element_ty), at < width
    )


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    residual: Tensor | None = None,
    tuning: RowsTuning = DEFAULT_TUNING,
) -> Tensor:
    """Write norm(s) · weight to `out`, norm(s) = s / sqrt(mean(s²) + eps), and return it; s = x, or the residual.

    x, out: [T, d]; weight: [d], its offset added. With `residual` [T, d], x is first added to it in place, rounded to
    its type, and s is that sum.
    """
    return _norm(x, weight, eps, out, residual, None, "plain" if residual is None else "before", tuning)


def rms_norm_add(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor,
    next_weight: Tensor | None = None,
    out: Tensor | None = None,
    tuning: RowsTuning = DEFAULT_TUNING,
) -> None:
    """Add norm(x) · weight to the residual in place (Gemma's norm after a block).

    With `next_weight` [d] and `out` [T, d], norm(residual) · next_weight, the norm before the next block, goes to
    `out` in the same launch.
    """
    if (next_weight is None) != (out is None):
        raise ValueError("The next norm needs both its weight and its output: give next_weight and out together.")
    _norm(x, weight, eps, residual if out is None else out, residual, next_weight, "after", tuning)


def silu_mul(gate_up: Tensor, out: Tensor, tuning: RowsTuning = DEFAULT_TUNING) -> Tensor:
    """Write silu(gate) · up to `out` [T, d] and return it, silu(x) = x / (1 + exp(-x)); gate_up = [gate | up], [T, 2d].
    """  # fmt: skip
    return _gate(gate_up, out, False, tuning)


def gelu_tanh_mul(gate_up: Tensor, out: Tensor, tuning: RowsTuning = DEFAULT_TUNING) -> Tensor:
    """As `silu_mul` with the tanh form of GELU (Hendrycks and Gimpel, "Gaussian error linear units", 2016)."""
    return _gate(gate_up, out, True, tuning)


def embed(
    table: Tensor,
    tokens: Tensor,
    out: Tensor,
    scale: float = 1.0,
    first_row: int = 0,
    tuning: RowsTuning = DEFAULT_TUNING,
) -> Tensor:
    """Write table[token - first_row] · scale to `out` [T, d] and return it; zeros where the table lacks the token.

    table: [N, d], rows `first_row` on of the vocabulary: with the vocabulary split over ranks, their sum is the
    embedding. tokens: int32 or int64 [T].
    """
    if tokens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"Rows are taken by int32 or int64, not {tokens.dtype}: convert the indices first.")
    if tokens.ndim != 1 or out.shape != (tokens.shape[0], table.shape[1]):
        raise ValueError(f"The output must be [{tokens.shape[0]}, {table.shape[1]}], a row for every token.")
    _require_rows(table=table, out=out)
    grid = (out.shape[0], triton.cdiv(out.shape[1], tuning.block))
    launch(
        _take_rows, grid, table, tokens, out, table.stride(0), out.stride(0), table.shape[1], first_row, table.shape[0],
        float(scale), BLOCK=tuning.block, num_warps=tuning.num_warps, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def gather_rows(x: Tensor, indices: Tensor, out: Tensor, tuning: RowsTuning = DEFAULT_TUNING) -> Tensor:
    """Write x[indices] to `out` [R, d] and return it; zeros where an index is outside x [T, d]."""
    return embed(x, indices, out, tuning=tuning)


def softcap(logits: Tensor, cap: float, tuning: RowsTuning = DEFAULT_TUNING) -> Tensor:
    """Replace logits [R, V] by cap · tanh(logits / cap) in place and return them."""
    if cap <= 0:
        raise ValueError(f"A cap on logits is above 0, not {cap}: leave the call out for a model without one.")
    _require_rows(logits=logits)
    grid = (logits.shape[0], triton.cdiv(logits.shape[1], tuning.block))
    launch(
        _softcap, grid, logits, logits.stride(0), logits.shape[1], float(cap),
        BLOCK=tuning.block, num_warps=tuning.num_warps, enable_fp_fusion=False,
    )  # fmt: skip
    return logits


def _norm(
    x: Tensor, weight: Tensor, eps: float, out: Tensor, residual: Tensor | None, next_weight: Tensor | None,
    mode: str, tuning: RowsTuning,
) -> Tensor:  # fmt: skip
    width = x.shape[-1]
    if any(each.shape != x.shape for each in (out, residual) if each is not None):
        raise ValueError(f"Input, output and residual must have one shape, {tuple(x.shape)}.")
    if any(each.shape != (width,) or not each.is_contiguous() for each in (weight, next_weight) if each is not None):
        raise ValueError(f"A norm's weight must be [{width}], contiguous, one for every feature.")
    _require_rows(x=x, out=out, residual=residual)
    launch(
        _rms_norm, (x.shape[0],), x, weight, residual, next_weight, out,
        x.stride(0), x.stride(0) if residual is None else residual.stride(0), out.stride(0), width, float(eps),
        MODE=mode, BLOCK=triton.next_power_of_2(width), num_warps=tuning.num_warps, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def _gate(gate_up: Tensor, out: Tensor, tanh: bool, tuning: RowsTuning) -> Tensor:
    rows, width = out.shape
    if gate_up.shape != (rows, 2 * width):
        raise ValueError(f"Gate and up must stand side by side: [{rows}, {2 * width}], not {tuple(gate_up.shape)}.")
    _require_rows(gate_up=gate_up, out=out)
    launch(
        _gated, (rows, triton.cdiv(width, tuning.block)), gate_up, out, gate_up.stride(0), out.stride(0), width,
        TANH=tanh, BLOCK=tuning.block, num_warps=tuning.num_warps, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def _require_rows(**tensors: Tensor | None) -> None:
    """Raise ValueError for a tensor whose rows a kernel would not read as they are."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.ndim != 2 or (tensor.shape[1] > 1 and tensor.stride(1) != 1):
            raise ValueError(f"{name} must be a matrix of dense rows: call .contiguous() on it first.")
        if tensor.dtype not in FLOATS:
            raise ValueError(f"{name} must be float32, bfloat16 or float16, not {tensor.dtype}.")
