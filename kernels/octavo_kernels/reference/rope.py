"""Rotary position embedding and the write into the paged KV cache."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate halves: dimensions (i, i + r) by the row's angle i, r = cos.shape[1]; dimensions from 2r on stay.

    x: [T, heads, head_dim]; cos, sin: [T, r]. Only products and sums, each rounded on its own: exact in any shape.
    """
    half = cos.shape[1]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def write_cache(cache: Tensor, values: Tensor, slots: Tensor) -> None:
    """Write token rows to their slots; a slot of -1 is written nowhere.

    cache: [num_blocks, block_size, kv_heads, head_dim]; values: [T, kv_heads, head_dim]; slots: int64 [T],
    block · block_size + offset.
    """
    kept = slots >= 0
    if not bool(kept.all()):
        values, slots = values[kept], slots[kept]
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, values)


def rope_and_cache(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, slots: Tensor) -> Tensor:
    """Rotate q and k, write k and v to the cache, return the rotated q.

    q: [T, heads, head_dim]; k, v: [T, kv_heads, head_dim]; cache: [2, num_blocks, block_size, kv_heads, head_dim], keys
    then values.
    """
    write_cache(cache[0], rope(k, cos, sin), slots)
    write_cache(cache[1], v, slots)
    return rope(q, cos, sin)
