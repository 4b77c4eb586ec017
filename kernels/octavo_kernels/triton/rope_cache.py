"""From a layer's fused q, k and v: bias, QK-norm, rotation, and the write into the paged KV cache, in one launch."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_kernels.triton.launch import launch

BLOCK_SIZE = 16


class RopeCacheTuning(NamedTuple):
    """Heads of one program (a power of 2) and its warps."""

    heads: int = 4
    num_warps: int = 2


@triton.jit
def e4m3_bits(values: tl.tensor) -> tl.tensor:
    """Return float32 as the bits of OCP e4m3: to the nearest, of two equally near the even one, saturating at ±448.

    By integers: neither sm_80 nor gfx942 converts to this format (gfx942's own has another bias). NaN stays NaN.
    """
    word = values.to(tl.uint32, bitcast=True)
    size = tl.minimum(word & 0x7FFFFFFF, 0x43E00000)  # 448
    # Below 2^-6 steps are 2^-9, the last bit of a float32 near 2^14.
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    # Above, 20 bits of the fraction are rounded away and the exponent's bias goes from 127 to 7.
    large = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    bits = tl.where(size < 0x3C800000, small, large)
    bits = tl.where((word & 0x7FFFFFFF) > 0x7F800000, 0x7F, bits)
    return (bits | ((word >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _store_part(
    part: tl.tensor,
    columns: tl.tensor,
    width: tl.tensor,
    q: tl.tensor,
    is_q: tl.tensor,
    cache: tl.tensor,
    is_cached: tl.tensor,
    FP8: tl.constexpr,
) -> None:
    inside = (columns < width)[None, :]
    tl.store(q + columns[None, :], part.to(q.dtype.element_ty), is_q & inside)
    if FP8:
        tl.store(cache + columns[None, :], e4m3_bits(part), is_cached & inside)
    else:
        tl.store(cache + columns[None, :], part.to(cache.dtype.element_ty), is_cached & inside)


@triton.jit
def _load_part(qkv: tl.tensor, bias: tl.tensor, columns: tl.tensor, width: tl.tensor, exists: tl.tensor) -> tl.tensor:
    inside = exists & (columns < width)[None, :]
    part = tl.load(qkv + columns[None, :], inside, 0.0).to(tl.float32)
    if bias is not None:
        part += tl.load(bias + columns[None, :], inside, 0.0).to(tl.float32)
    return part


@triton.jit
def _norm_weight(
    q_weight: tl.tensor, k_weight: tl.tensor, columns: tl.tensor, width: tl.tensor, is_q: tl.tensor, is_k: tl.tensor
) -> tl.tensor:
    inside = columns < width
    of_q = tl.load(q_weight + columns, inside, 0.0).to(tl.float32)[None, :]
    of_k = tl.load(k_weight + columns, inside, 0.0).to(tl.float32)[None, :]
    return tl.where(is_q, of_q, tl.where(is_k, of_k, 1.0))


@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def _rope_and_cache(
    qkv: tl.tensor, bias: tl.tensor, q_weight: tl.tensor, k_weight: tl.tensor, cos: tl.tensor, sin: tl.tensor,
    positions: tl.tensor, slots: tl.tensor, out: tl.tensor, cache: tl.tensor, qkv_stride: tl.tensor,
    num_heads: tl.tensor, num_kv_heads: tl.tensor, head_dim: tl.tensor, half: tl.tensor, eps: tl.tensor,
    FP8: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, PAGE: tl.constexpr,
) -> None:  # fmt: skip
    """One token and HEADS of its heads, each in three parts: the two halves that rotate together, and the rest."""
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    is_q = head < num_heads
    is_k = (head >= num_heads) & (head < num_heads + num_kv_heads)
    exists = head < num_heads + 2 * num_kv_heads
    slot = tl.load(slots + token)
    is_cached = exists & (head >= tl.where(slot >= 0, num_heads, num_heads + 2 * num_kv_heads))

    side = tl.where(is_k, 0, 1)
    kv_head = head - num_heads - side * num_kv_heads
    page = ((slot // PAGE) * 2 + side) * num_kv_heads + kv_head
    to_cache = cache + (page * PAGE + slot % PAGE) * head_dim
    to_q = out + (token * num_heads + head) * head_dim
    source = qkv + token * qkv_stride + head * head_dim
    from_bias = bias
    if bias is not None:
        from_bias = bias + head * head_dim

    left = tl.arange(0, HALF)
    first = _load_part(source, from_bias, left, half, exists)
    second = _load_part(source + half, from_bias + half if bias is not None else bias, left, half, exists)
    if REST > 0:
        behind = 2 * half + tl.arange(0, REST)
        rest = _load_part(source, from_bias, behind, head_dim, exists)
    if q_weight is not None:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        if REST > 0:
            squares += tl.sum(rest * rest, 1)
        root = tl.where(is_q | is_k, tl.sqrt_rn(squares / head_dim + eps)[:, None], 1.0)
        first = tl.div_rn(first, root) * _norm_weight(q_weight, k_weight, left, half, is_q, is_k)
        second = tl.div_rn(second, root) * _norm_weight(q_weight + half, k_weight + half, left, half, is_q, is_k)
        if REST > 0:
            rest = tl.div_rn(rest, root) * _norm_weight(q_weight, k_weight, behind, head_dim, is_q, is_k)

    angle = tl.load(positions + token).to(tl.int64) * half + left
    cosine = tl.load(cos + angle, left < half, 0.0)[None, :]
    sine = tl.load(sin + angle, left < half, 0.0)[None, :]
    rotates = is_q | is_k
    turned = tl.where(rotates, first * cosine - second * sine, first)
    second = tl.where(rotates, second * cosine + first * sine, second)

    _store_part(turned, left, half, to_q, is_q, to_cache, is_cached, FP8)
    _store_part(second, left, half, to_q + half, is_q, to_cache + half, is_cached, FP8)
    if REST > 0:
        _store_part(rest, behind, head_dim, to_q, is_q, to_cache, is_cached, FP8)


def rope_and_cache(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 0.0,
    tuning: RopeCacheTuning | None = None,
) -> Tensor:
    """Write the rotated q to `out` and return it; write the rotated k and v to the cache.

    qkv: [T, (heads + 2 · kv_heads) · head_dim]; `bias`, of that width, is added first. q_weight, k_weight: [head_dim],
    an RMS norm of each head before its rotation (Qwen3, Gemma 3). positions: int32 [T]; cos, sin: float32
    [max_position, r]: dimensions (i, i + r) rotate, those from 2r on stay. slots: int64 [T], block · 16 + offset, or -1
    where a token is written nowhere. cache: [num_blocks, 2, kv_heads, 16, head_dim], float32, bfloat16, float16 or
    float8_e4m3fn (values saturate); out: [T, heads, head_dim]. Both are dense. Raises ValueError for other shapes.
    """
    tuning = tuning or RopeCacheTuning()
    heads, head_dim, kv_heads, half = out.shape[1], out.shape[2], cache.shape[2], cos.shape[1]
    _require_shapes(qkv, positions, slots, cos, sin, cache, out)
    if (q_weight is None) != (k_weight is None):
        raise ValueError("QK-norm needs the weights of both: give q_weight and k_weight together.")
    rest = head_dim - 2 * half
    launch(
        _rope_and_cache,
        (qkv.shape[0], triton.cdiv(heads + 2 * kv_heads, tuning.heads)),
        qkv, bias, q_weight, k_weight, cos, sin, positions, slots, out,
        cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache,
        qkv.stride(0), heads, kv_heads, head_dim, half, float(eps),
        FP8=cache.dtype == torch.float8_e4m3fn,
        HEADS=tuning.heads,
        HALF=triton.next_power_of_2(half),
        REST=triton.next_power_of_2(rest) if rest else 0,
        PAGE=BLOCK_SIZE,
        num_warps=tuning.num_warps,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out


def _require_shapes(
    qkv: Tensor, positions: Tensor, slots: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, out: Tensor
) -> None:
    tokens, heads, head_dim = out.shape
    if cache.ndim != 5 or cache.shape[1] != 2 or cache.shape[3:] != (BLOCK_SIZE, head_dim):
        raise ValueError(f"The cache must be [num_blocks, 2, kv_heads, {BLOCK_SIZE}, {head_dim}].")
    width = (heads + 2 * cache.shape[2]) * head_dim
    if qkv.shape != (tokens, width) or qkv.stride(1) != 1:
        raise ValueError(f"q, k and v must be [{tokens}, {width}] with dense rows, not {tuple(qkv.shape)}.")
    if positions.shape != (tokens,) or slots.shape != (tokens,) or slots.dtype != torch.int64:
        raise ValueError(f"There must be a position and an int64 slot for each of the {tokens} tokens.")
    if cos.shape != sin.shape or not 0 < 2 * cos.shape[1] <= head_dim:
        raise ValueError(f"cos and sin must be [positions, r] with at most {head_dim // 2} angles a head.")
    if not (cache.is_contiguous() and out.is_contiguous() and cos.is_contiguous() and sin.is_contiguous()):
        raise ValueError("Cache, output, cos and sin must be contiguous: they are addressed by their shapes alone.")
