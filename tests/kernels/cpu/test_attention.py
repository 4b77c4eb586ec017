"""Rotary embedding, the paged cache and attention against the reference, and row invariance."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo_kernels.cpu._native import CacheLayout, Pool, paged_attention, rms_norm, rope_and_cache
from octavo_kernels.reference import paged_attention as reference_attention
from octavo_kernels.reference import plan_attention, rope, write_cache

BLOCK = 16
DTYPES = ("f32", "bf16", "int8")
CONTEXTS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 255, 256, 257, 700)
HEADS = ((9, 3, 64), (4, 4, 128), (4, 1, 256), (5, 1, 48), (34, 2, 16), (3, 3, 80))


class Case(NamedTuple):
    """Rows of (context, queries at its end) over one cache with scattered blocks."""

    q: NDArray[np.float32]
    keys: NDArray[np.float32]  # [blocks, 16, kv_heads, head_dim], as stored
    values: NDArray[np.float32]
    cache: NDArray[np.uint8]
    layout: CacheLayout
    offsets: NDArray[np.int32]
    positions: NDArray[np.int32]
    contexts: NDArray[np.int32]
    tables: NDArray[np.int32]


def stored(dtype: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what the cache keeps of x [..., head_dim]."""
    if dtype == "f32":
        return x
    if dtype == "bf16":
        return torch.from_numpy(x).to(torch.bfloat16).float().numpy()
    largest = np.abs(x).max(-1, keepdims=True)
    return np.rint(x * (np.float32(127) / largest)) * (largest / np.float32(127))


def fill(
    pool: Pool, cache: NDArray[np.uint8], layout: CacheLayout, keys: NDArray[np.float32], values: NDArray[np.float32]
) -> None:
    """Write [blocks, 16, kv_heads, head_dim] to the cache, unrotated."""
    tokens, kv_heads, head_dim = keys.shape[0] * BLOCK, *keys.shape[2:]
    k, v = keys.reshape(tokens, kv_heads, head_dim), values.reshape(tokens, kv_heads, head_dim)
    qkv = np.concatenate([np.zeros_like(k[:, :1]), k, v], axis=1)
    none = np.zeros((tokens, 0), np.float32)
    q_out = np.empty((tokens, 1, head_dim), np.float32)
    rope_and_cache(pool, qkv, none, none, np.arange(tokens), q_out, cache, layout)


def build(pool: Pool, rows: list[tuple[int, int]], heads: tuple[int, int, int], dtype: str, seed: int = 0) -> Case:
    num_heads, kv_heads, head_dim = heads
    rng = np.random.default_rng(seed)
    counts = [-(-context // BLOCK) for context, _ in rows]
    blocks = max(1, sum(counts))
    order = rng.permutation(sum(counts)).astype(np.int32)
    tables = np.full((len(rows), max(1, *counts)), -1, dtype=np.int32)
    for row, count in enumerate(counts):
        tables[row, :count], order = order[:count], order[count:]
    keys, values = rng.standard_normal((2, blocks, BLOCK, kv_heads, head_dim), dtype=np.float32)
    layout = CacheLayout(dtype, kv_heads, head_dim)
    cache = np.zeros((blocks, layout.block_bytes), np.uint8)
    fill(pool, cache, layout, keys, values)
    tokens = sum(queries for _, queries in rows)
    return Case(
        rng.standard_normal((tokens, num_heads, head_dim), dtype=np.float32),
        stored(dtype, keys),
        stored(dtype, values),
        cache,
        layout,
        np.cumsum([0, *(queries for _, queries in rows)]).astype(np.int32),
        np.concatenate([np.arange(context - queries, context) for context, queries in rows]).astype(np.int32),
        np.array([context for context, _ in rows], dtype=np.int32),
        tables,
    )


def attend(pool: Pool, case: Case, window: int = 0, softcap: float = 0.0) -> NDArray[np.float32]:
    out = np.full_like(case.q, np.nan)
    scale = case.q.shape[2] ** -0.5
    paged_attention(
        pool, case.q, case.cache, case.layout, case.offsets, case.positions, case.contexts, case.tables, scale, out,
        window, softcap,
    )  # fmt: skip
    return out


def wanted(case: Case, window: int = 0, softcap: float = 0.0) -> NDArray[np.float32]:
    arrays = (case.q, case.keys, case.values, case.offsets, case.positions, case.contexts, case.tables)
    key = (sha256(b"".join(array.tobytes() for array in arrays)).digest(), window, softcap)
    if key not in _wanted:
        _wanted[key] = compute_wanted(case, window, softcap)
    return _wanted[key]


_wanted: dict[tuple[bytes, int, float], NDArray[np.float32]] = {}
"""The reference's results: every variant is held to the same."""


def compute_wanted(case: Case, window: int, softcap: float) -> NDArray[np.float32]:
    group = case.q.shape[1] // case.keys.shape[2]
    plan = plan_attention(case.offsets, case.positions, case.contexts, case.tables, BLOCK, group, window)
    cache = torch.from_numpy(np.stack([case.keys, case.values]))
    return reference_attention(torch.from_numpy(case.q), cache, plan, case.q.shape[2] ** -0.5, softcap).numpy()


def require_close(pool: Pool, case: Case, dtype: str, window: int = 0, softcap: float = 0.0) -> None:
    error = np.abs(attend(pool, case, window, softcap) - wanted(case, window, softcap)).max(initial=0)
    # Queries and weights have 15 and 14 bits where the cache has 8.
    assert error <= (1e-3 if dtype == "int8" else 2e-5), error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
def test_a_mixed_step_is_the_references(pool: Pool, dtype: str, heads: tuple[int, int, int]) -> None:
    rows = [(context, 1) for context in CONTEXTS] + [(33, 33), (0, 0), (300, 17), (520, 5)]
    require_close(pool, build(pool, rows, heads, dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 5, 16, 17, 256, 300])
def test_a_window_hides_what_is_behind_it(pool: Pool, dtype: str, window: int) -> None:
    case = build(pool, [(1, 1), (700, 1), (700, 40), (257, 9), (20, 20)], (6, 2, 64), dtype)
    require_close(pool, case, dtype, window)


def test_blocks_freed_behind_a_window_are_not_read(pool: Pool) -> None:
    case = build(pool, [(700, 3)], (6, 2, 64), "f32")
    full = attend(pool, case, window=100)
    freed = (697 - 99) // BLOCK
    case.cache[case.tables[0, :freed]] = 0xFF  # NaN
    case.tables[0, :freed] = -1
    assert np.array_equal(attend(pool, case, window=100), full)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_are_capped(pool: Pool, dtype: str) -> None:
    require_close(pool, build(pool, [(300, 1), (40, 12)], (6, 2, 64), dtype), dtype, softcap=3.0)


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    rows=st.lists(st.tuples(st.integers(1, 600), st.integers(1, 40)), min_size=1, max_size=5),
    heads=st.sampled_from(HEADS),
    window=st.sampled_from([0, 0, 37, 256]),
)
@settings(max_examples=10, deadline=None)
def test_any_step_is_the_references(
    pool: Pool, dtype: str, rows: list[tuple[int, int]], heads: tuple[int, int, int], window: int
) -> None:
    steps = [(context, min(context, queries)) for context, queries in rows]
    require_close(pool, build(pool, steps, heads, dtype), dtype, window)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 50])
def test_a_query_alone_is_itself_in_a_chunk_and_among_others(pool: Pool, dtype: str, window: int) -> None:
    case = build(pool, [(530, 40), (90, 90), (1, 1), (300, 1)], (9, 3, 64), dtype)
    together = attend(pool, case, window)
    for row in range(4):
        for token in range(case.offsets[row], case.offsets[row + 1]):
            alone = case._replace(
                q=case.q[token : token + 1].copy(),
                offsets=np.array([0, 1], np.int32),
                positions=case.positions[token : token + 1].copy(),
                contexts=case.positions[token : token + 1] + 1,
                tables=case.tables[row : row + 1].copy(),
            )
            assert np.array_equal(attend(pool, alone, window)[0], together[token]), (row, token)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (50, 0.0), (0, 3.0)])
def test_an_int8_cache_gives_the_same_bits_on_every_variant(
    pools: dict[str, Pool], heads: tuple[int, int, int], window: int, softcap: float
) -> None:
    rows = [(530, 40), (90, 90), (1, 1), (300, 1)]
    results = [attend(each, build(each, rows, heads, "int8"), window, softcap) for each in pools.values()]
    for result in results[1:]:
        assert np.array_equal(result, results[0])


@st.composite
def prefixes(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Rows of (context, queries, row whose blocks it begins with, how many of them)."""
    rows: list[tuple[int, int, int, int]] = []
    for row in range(draw(st.integers(2, 9))):
        context = draw(st.sampled_from([1, 255, 256, 257, 511, 512, 513, 600, 800]))
        queries = min(context, draw(st.sampled_from([1, 1, 1, 2, 3, 40])))
        source = draw(st.integers(0, max(0, row - 1)))
        most = min(context, rows[source][0] if rows else 0) // BLOCK
        rows.append((context, queries, source, min(most, draw(st.sampled_from([0, 15, 16, 17, 32, 48])))))
    return rows


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    rows=prefixes(), heads=st.sampled_from([(9, 3, 64), (4, 4, 32), (34, 2, 16)]), window=st.sampled_from([0, 0, 300])
)
@settings(max_examples=12, deadline=None)
def test_a_shared_prefix_is_attended_as_if_alone(
    pool: Pool, dtype: str, rows: list[tuple[int, int, int, int]], heads: tuple[int, int, int], window: int
) -> None:
    case = build(pool, [(context, queries) for context, queries, _, _ in rows], heads, dtype)
    shared = case._replace(tables=case.tables.copy())
    for row, (_, _, source, count) in enumerate(rows):
        case.cache[case.tables[row, :count]] = case.cache[case.tables[source, :count]]  # the same in blocks of its own
        shared.tables[row, :count] = shared.tables[source, :count]
    assert np.array_equal(attend(pool, shared, window), attend(pool, case, window))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_thread_gives_the_same_bits(pool: Pool, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CPU_ISA", pool.variant)
    case = build(pool, [(1500, 1)], (9, 3, 64), dtype)  # two threads share its partitions
    assert np.array_equal(attend(pool, case), attend(Pool(1), case))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_others_left_in_a_block_does_not_matter(pool: Pool, dtype: str) -> None:
    case = build(pool, [(21, 2)], (6, 2, 64), dtype)
    clean = attend(pool, case)
    dirty = case._replace(cache=np.full_like(case.cache, 0xFF))  # NaN in every type
    tokens = np.arange(21)
    slots = (case.tables[0, tokens // BLOCK] * BLOCK + tokens % BLOCK).astype(np.int64)
    keys, values = case.keys.reshape(-1, 2, 64)[slots], case.values.reshape(-1, 2, 64)[slots]
    qkv = np.concatenate([keys[:, :1], keys, values], axis=1)
    none, q_out = np.zeros((21, 0), np.float32), np.empty((21, 1, 64), np.float32)
    rope_and_cache(pool, qkv, none, none, slots, q_out, dirty.cache, case.layout)
    if dtype == "int8":  # quantised twice
        np.testing.assert_allclose(attend(pool, dirty), clean, atol=1e-5)
    else:
        assert np.array_equal(attend(pool, dirty), clean)


@pytest.mark.parametrize("half", [0, 8, 24, 32])
@pytest.mark.parametrize("norms", [False, True])
def test_rotation_norms_and_the_written_cache(pool: Pool, half: int, norms: bool) -> None:
    tokens, heads, kv_heads, head_dim = 19, 6, 2, 64
    rng = np.random.default_rng(3)
    qkv = rng.standard_normal((tokens, heads + 2 * kv_heads, head_dim), dtype=np.float32)
    angles = rng.uniform(0, 6, (tokens, half)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    q_weight, k_weight = rng.standard_normal((2, head_dim), dtype=np.float32)
    slots = rng.permutation(3 * BLOCK)[:tokens].astype(np.int64)
    slots[4] = -1
    layout = CacheLayout("f32", kv_heads, head_dim)
    cache = np.zeros((3, 2, layout.block_bytes), np.uint8)  # two layers side by side
    q_out = np.empty((tokens, heads, head_dim), np.float32)
    weights = (q_weight, k_weight) if norms else (None, None)
    rope_and_cache(pool, qkv, cos, sin, slots, q_out, cache[:, 1], layout, *weights)

    q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    if norms:
        q, k = normed(pool, q, q_weight), normed(pool, k, k_weight)
    factors = torch.from_numpy(cos), torch.from_numpy(sin)
    expected = torch.zeros(2, 3, BLOCK, kv_heads, head_dim)
    where = torch.from_numpy(slots)
    write_cache(expected[0], rope(torch.from_numpy(np.ascontiguousarray(k)), *factors), where)
    write_cache(expected[1], torch.from_numpy(np.ascontiguousarray(v)), where)
    assert np.array_equal(q_out, rope(torch.from_numpy(np.ascontiguousarray(q)), *factors).numpy())
    written = cache[:, 1].copy().view(np.float32).reshape(3, kv_heads, 2, head_dim * BLOCK)
    keys = written[:, :, 0].reshape(3, kv_heads, head_dim, BLOCK).transpose(0, 3, 1, 2)
    values = written[:, :, 1].reshape(3, kv_heads, BLOCK, head_dim).transpose(0, 2, 1, 3)
    assert np.array_equal(keys, expected[0].numpy())
    assert np.array_equal(values, expected[1].numpy())
    assert not cache[:, 0].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_written_cache_does_not_depend_on_how_tokens_come(pool: Pool, dtype: str) -> None:
    kv_heads, head_dim, half = 2, 48, 16
    slots = np.concatenate([np.arange(7, 60), [-1, -1], np.arange(64, 68), [101, 99, 100, 102], np.arange(112, 300)])
    tokens, layout, rng = len(slots), CacheLayout(dtype, kv_heads, head_dim), np.random.default_rng(5)
    qkv = rng.standard_normal((tokens, 3 + 2 * kv_heads, head_dim), dtype=np.float32)
    cos, sin = rng.standard_normal((2, tokens, half), dtype=np.float32)

    def write(steps: list[NDArray[np.int64]]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        cache = np.zeros((20, layout.block_bytes), np.uint8)
        q = np.empty((tokens, 3, head_dim), np.float32)
        for at in steps:
            out = np.empty((len(at), 3, head_dim), np.float32)
            rope_and_cache(pool, qkv[at], cos[at], sin[at], slots[at], out, cache, layout)
            q[at] = out
        return cache, q

    together = write([np.arange(tokens)])
    for steps in (np.split(np.arange(tokens), tokens), np.split(np.arange(tokens), [3, 4, 50, 120])):
        apart = write(steps)
        assert np.array_equal(apart[0], together[0])
        assert np.array_equal(apart[1], together[1])


def normed(pool: Pool, x: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    out = np.empty_like(rows)
    rms_norm(pool, rows, weight, 1e-6, out)
    return out.reshape(x.shape)


def test_the_layout_of_bfloat16_pairs_tokens_of_values_and_dimensions_of_keys(pool: Pool) -> None:
    case = build(pool, [(32, 1)], (4, 2, 64), "bf16")
    raw = case.cache.view(np.uint16).reshape(2, 2, 2, 64 * BLOCK).astype(np.uint32) << 16
    keys = raw[:, :, 0].view(np.float32).reshape(2, 2, 32, BLOCK, 2).transpose(0, 3, 1, 2, 4).reshape(2, BLOCK, 2, 64)
    values = raw[:, :, 1].view(np.float32).reshape(2, 2, 8, 64, 2).transpose(0, 2, 4, 1, 3).reshape(2, BLOCK, 2, 64)
    assert np.array_equal(keys, case.keys)
    assert np.array_equal(values, case.values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_sequence(pool: Pool, dtype: str, poison: float) -> None:
    case = build(pool, [(40, 1), (300, 2)], (6, 2, 64), dtype)
    clean = attend(pool, case)
    case.q[0, 3, 5] = poison
    result = attend(pool, case)
    assert not np.isfinite(result[0, 3]).any()
    result[0, 3] = clean[0, 3]
    assert np.array_equal(result, clean)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("of", [0, 1], ids=["key", "value"])
def test_a_key_or_value_that_is_not_a_number_shows(pool: Pool, dtype: str, of: int) -> None:
    case = build(pool, [(40, 1), (300, 1)], (6, 2, 64), dtype)
    stored = np.stack([case.keys, case.values])
    fill(pool, case.cache, case.layout, *stored)
    clean = attend(pool, case)
    stored[of, case.tables[0, 1], 3, 1, 5] = np.nan
    fill(pool, case.cache, case.layout, *stored)
    result = attend(pool, case)
    assert not np.isfinite(result[0, 3:]).all(axis=-1).any()
    result[0, 3:] = clean[0, 3:]
    assert np.array_equal(result, clean)


def test_wrong_tables_and_slots_are_refused(pool: Pool) -> None:
    case = build(pool, [(40, 1)], (6, 2, 64), "f32")
    with pytest.raises(ValueError, match="not in the cache"):
        attend(pool, case._replace(tables=case.tables + 1000))
    with pytest.raises(ValueError, match="longer than its block table"):
        attend(pool, case._replace(contexts=case.contexts + 100))
    with pytest.raises(ValueError, match="A slot lies outside"):
        fill(pool, case.cache[:1], case.layout, case.keys, case.values)
    with pytest.raises(ValueError, match="multiple of 16"):
        CacheLayout("f32", 1, 40)
