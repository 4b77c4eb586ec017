"""A decoder layer over the kernels one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_kernels.cpu import CacheLayout, Pool, Weight, linear, paged_attention, rms_norm, rope_and_cache

Floats = NDArray[np.float32]


class Rope:
    def __init__(self, cos: Floats, sin: Floats) -> None:
        self.cos, self.sin = cos, sin


class Layer:
    def __init__(self, **parts: Any) -> None:
        defaults = dict.fromkeys(
            ("qkv_bias", "output_bias", "gate_up_bias", "down_bias", "q_norm", "k_norm", "post_attention_norm",
             "post_mlp_norm", "gate_up", "down"))  # fmt: skip
        defaults |= {"qk_eps": 1e-6, "post_attention_eps": 1e-6, "post_mlp_eps": 1e-6, "activation": "silu"}
        self.__dict__.update(defaults | {"group": 0, "window": 0, "softcap": 0.0} | parts)
        self.layout: CacheLayout
        self.cache: NDArray[np.uint8]

    def bind(self, cache: NDArray[np.uint8]) -> None:
        self.cache = cache


class Step:
    def __init__(
        self,
        positions: NDArray[np.int32],
        row_offsets: NDArray[np.int32],
        context_lengths: NDArray[np.int32],
        block_tables: Sequence[NDArray[np.int32]],
        slots: Sequence[NDArray[np.int64]],
    ) -> None:
        self.positions, self.row_offsets, self.context_lengths = positions, row_offsets, context_lengths
        self.block_tables, self.slots = [np.ascontiguousarray(t) for t in block_tables], slots


def attend(pool: Pool, layer: Any, step: Step, x: Floats) -> None:
    tokens = len(x)
    normed = np.empty_like(x)
    rms_norm(pool, x, layer.attention_norm, layer.attention_eps, normed)
    head_dim = layer.qkv.n // (layer.heads + 2 * layer.kv_heads)
    qkv = np.empty((tokens, layer.qkv.n), np.float32)
    linear(pool, normed, layer.qkv, qkv, bias=layer.qkv_bias)
    q = np.empty((tokens, layer.heads, head_dim), np.float32)
    rope_and_cache(
        pool, qkv.reshape(tokens, -1, head_dim), layer.rope.cos[step.positions], layer.rope.sin[step.positions],
        step.slots[layer.group], q, layer.cache, layer.layout, layer.q_norm, layer.k_norm, layer.qk_eps)  # fmt: skip
    y = np.empty_like(q)
    paged_attention(
        pool, q, layer.cache, layer.layout, step.row_offsets, step.positions, step.context_lengths,
        step.block_tables[layer.group], layer.scale, y, layer.window, layer.softcap)  # fmt: skip
    _project(pool, y.reshape(tokens, -1), layer.output, layer.output_bias, layer.post_attention_norm,
             layer.post_attention_eps, x)  # fmt: skip


def mlp(pool: Pool, layer: Any, x: Floats) -> None:
    normed = np.empty_like(x)
    rms_norm(pool, x, layer.mlp_norm, layer.mlp_eps, normed)
    inner = np.empty((len(x), layer.gate_up.features), np.float32)
    linear(pool, normed, layer.gate_up, inner, bias=layer.gate_up_bias, activation=layer.activation)
    _project(pool, inner, layer.down, layer.down_bias, layer.post_mlp_norm, layer.post_mlp_eps, x)


def _project(pool: Pool, y: Floats, weight: Weight, bias: Any, norm: Any, eps: float, x: Floats) -> None:
    if norm is None:
        linear(pool, y, weight, x, x, bias)
        return
    out = np.empty_like(x)
    linear(pool, y, weight, out, bias=bias)
    rms_norm(pool, out, norm, eps, out)
    x += out


def logits(
    pool: Pool, norm: Floats, eps: float, head: Weight, x: Floats, tokens: NDArray[np.int32], out: Floats,
    softcap: float = 0.0,
) -> None:  # fmt: skip
    wanted = x[tokens]
    rms_norm(pool, wanted, norm, eps, wanted)
    linear(pool, wanted, head, out)
    if softcap:
        np.multiply(np.tanh(out / np.float32(softcap)), np.float32(softcap), out=out)
