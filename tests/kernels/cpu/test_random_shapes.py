"""What the other files try at chosen shapes, at random ones: every variant against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo_kernels.cpu._native import CacheLayout, Pool, activate, embed, linear, rms_norm, rope_and_cache
from octavo_kernels.cpu.weights import pack
from octavo_kernels.reference import rms_norm as reference_norm
from octavo_kernels.reference import rope as reference_rope
from octavo_kernels.reference import silu_mul as reference_silu_mul
from tests.kernels.cpu.test_linear import as_computed
from tests.kernels.cpu.test_rows import in_panels
from tests.kernels.cpu.weight_samples import QUANTISED, sample, unit

Floats = NDArray[np.float32]
SEEDS = st.integers(0, 2**32 - 1)


def floats(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("kind", QUANTISED)
@given(rows=st.integers(1, 30), n=st.integers(1, 100), blocks=st.integers(1, 3), gated=st.booleans(), seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_quantised_products(pool: Pool, kind: str, rows: int, n: int, blocks: int, gated: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = unit(kind) * blocks
    source, target, plane, meaning = sample(kind, 2 * n if gated else n, k, seed)
    planes = [plane[:n], plane[n:]] if gated else [plane]
    x, bias, residual = floats(rng, rows, k), floats(rng, len(meaning)), floats(rng, rows, n)
    out = np.full((rows, n), np.nan, np.float32)
    linear(pool, x, pack(pool, source, planes, k, target, gate_up=gated), out, residual, bias)
    products = as_computed(kind, x) @ meaning.astype(np.float64).T + bias
    size = 1 + np.abs(products).max()
    if gated:
        gate, up = products[:, :n], products[:, n:]
        products = gate / (1 + np.exp(-gate)) * up
        size *= size
    assert np.abs(out - products - residual).max() < 2e-6 * np.sqrt(k) * size


@given(rows=st.integers(0, 30), width=st.integers(1, 300), seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_norms_and_activations(pool: Pool, rows: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weight, out = floats(rng, rows, width), floats(rng, width), np.empty((rows, width), np.float32)
    rms_norm(pool, x, weight, 1e-6, out)
    wanted, _ = reference_norm(torch.from_numpy(x), torch.from_numpy(weight), 1e-6)
    np.testing.assert_allclose(out, wanted, rtol=2e-5, atol=2e-6)
    gate_up = floats(rng, rows, 2 * width) * 8
    activate(pool, in_panels(gate_up), out)
    np.testing.assert_allclose(out, reference_silu_mul(torch.from_numpy(gate_up)), rtol=1e-5, atol=1e-6)


@given(
    tokens=st.integers(0, 40),
    groups=st.integers(1, 5),
    kv_heads=st.integers(1, 4),
    sixteens=st.integers(1, 8),
    rotated=st.floats(0, 1),
    seed=SEEDS,
)
@settings(max_examples=40, deadline=None)
def test_rotations(
    pool: Pool, tokens: int, groups: int, kv_heads: int, sixteens: int, rotated: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    heads, head_dim = groups * kv_heads, 16 * sixteens
    half = int(rotated * head_dim / 2)
    qkv, angles = floats(rng, tokens, heads + 2 * kv_heads, head_dim), floats(rng, tokens, half)
    layout, q_out = CacheLayout("f32", kv_heads, head_dim), np.empty((tokens, heads, head_dim), np.float32)
    cache = np.zeros((3, layout.block_bytes), np.uint8)
    slots = rng.permutation(48)[:tokens].astype(np.int64)
    rope_and_cache(pool, qkv, np.cos(angles), np.sin(angles), slots, q_out, cache, layout)
    factors = torch.from_numpy(np.cos(angles)), torch.from_numpy(np.sin(angles))
    wanted = reference_rope(torch.from_numpy(qkv[:, : heads + kv_heads].copy()), *factors).numpy()
    assert np.array_equal(q_out, wanted[:, :heads])
    written = cache.view(np.float32).reshape(3, kv_heads, 2, head_dim, 16)
    for token, slot in enumerate(slots):
        assert np.array_equal(written[slot // 16, :, 0, :, slot % 16], wanted[token, heads:])
        values = written[slot // 16, :, 1].reshape(kv_heads, 16, head_dim)
        assert np.array_equal(values[:, slot % 16], qkv[token, heads + kv_heads :])


@pytest.mark.parametrize("kind", ["F32", "BF16", *QUANTISED])
@given(rows=st.integers(1, 90), blocks=st.integers(1, 3), count=st.integers(0, 20), seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_embeddings(pool: Pool, kind: str, rows: int, blocks: int, count: int, seed: int) -> None:
    k = unit(kind) * blocks
    source, target, plane, meaning = sample(kind, rows, k, seed)
    ids = np.random.default_rng(seed).integers(0, rows, count).astype(np.int32)
    out = np.full((count, k), np.nan, np.float32)
    embed(pool, pack(pool, source, [plane], k, target), ids, out)
    np.testing.assert_allclose(out, meaning[ids], rtol=1e-6, atol=1e-6)
