"""Paged attention against its definition in float64, at the edges of blocks and partitions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo_kernels.reference import Workers, paged_attention, plan_attention
from octavo_kernels.reference.selfcheck import check_attention

BLOCK = 16
CONTEXTS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 255, 256, 257, 700)


class Case(NamedTuple):
    """Rows of (context, queries at its end) over one cache with scattered blocks."""

    q: torch.Tensor
    cache: torch.Tensor
    offsets: NDArray[np.int32]
    positions: NDArray[np.int32]
    contexts: NDArray[np.int32]
    tables: NDArray[np.int32]


def build(rows: list[tuple[int, int]], heads: int, kv_heads: int, head_dim: int, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-context // BLOCK) for context, _ in rows]
    order = np.random.default_rng(seed).permutation(sum(counts))
    tables = np.full((len(rows), max(counts)), -1, dtype=np.int32)
    for row, count in enumerate(counts):
        tables[row, :count], order = order[:count], order[count:]
    tokens = sum(queries for _, queries in rows)
    return Case(
        torch.randn(tokens, heads, head_dim, generator=generator),
        torch.randn(2, sum(counts), BLOCK, kv_heads, head_dim, generator=generator),
        np.cumsum([0, *(queries for _, queries in rows)]).astype(np.int32),
        np.concatenate([np.arange(context - queries, context) for context, queries in rows]).astype(np.int32),
        np.array([context for context, _ in rows], dtype=np.int32),
        tables,
    )


def attend(case: Case, window: int = 0, softcap: float = 0.0, threads: int = 1) -> torch.Tensor:
    group = case.q.shape[1] // case.cache.shape[3]
    plan = plan_attention(case.offsets, case.positions, case.contexts, case.tables, BLOCK, group, window)
    return paged_attention(case.q, case.cache, plan, case.q.shape[2] ** -0.5, softcap, Workers(threads))


def definition(case: Case, window: int = 0, softcap: float = 0.0) -> NDArray[np.float64]:
    result = np.zeros(case.q.shape)
    group = case.q.shape[1] // case.cache.shape[3]
    for row, context in enumerate(case.contexts):
        blocks = case.tables[row][: -(-context // BLOCK)]
        keys, values = (part[blocks].flatten(0, 1).double().numpy() for part in case.cache)
        for token in range(case.offsets[row], case.offsets[row + 1]):
            end = min(case.positions[token] + 1, context)
            begin = max(case.positions[token] + 1 - window, 0) if window else 0
            for head in range(case.q.shape[1]):
                scores = keys[begin:end, head // group] @ case.q[token, head].double().numpy() * case.q.shape[2] ** -0.5
                if softcap:
                    scores = np.tanh(scores / softcap) * softcap
                weights = np.exp(scores - scores.max())
                result[token, head] = weights / weights.sum() @ values[begin:end, head // group]
    return result


def assert_close(got: torch.Tensor, expected: NDArray[np.float64]) -> None:
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (9, 3), (8, 1), (34, 2)])
def test_decode_attends_to_the_whole_context(context: int, heads: int, kv_heads: int) -> None:
    case = build([(context, 1)], heads, kv_heads, 8)
    assert_close(attend(case), definition(case))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("queries", [1, 5, 6, 17, 300])
def test_chunk_is_causal(context: int, queries: int) -> None:
    case = build([(context, min(queries, context))], 6, 2, 8)
    assert_close(attend(case), definition(case))


@pytest.mark.parametrize("threads", [1, 2])
def test_decode_rows_chunks_and_empty_rows_mix(threads: int) -> None:
    case = build([(257, 1), (16, 16), (300, 0), (700, 20), (1, 1), (256, 256)], 6, 2, 8)
    assert_close(attend(case, threads=threads), definition(case))


@pytest.mark.parametrize("window", [1, 16, 255, 256, 300])
def test_window_hides_what_lies_behind_it(window: int) -> None:
    case = build([(700, 40), (20, 1), (513, 1)], 6, 2, 8)
    assert_close(attend(case, window=window), definition(case, window=window))


def test_blocks_freed_behind_the_window_are_not_read() -> None:
    case = build([(700, 1)], 6, 2, 8)
    case.tables[0].sort()
    expected = attend(case, window=100)
    freed = case.tables.copy()
    freed[0, : (700 - 100) // BLOCK] = -1
    case.cache[:, : (700 - 100) // BLOCK] = np.nan
    assert torch.equal(attend(case._replace(tables=freed), window=100), expected)


def test_softcap_bounds_the_scores() -> None:
    case = build([(300, 3)], 4, 2, 8)
    assert_close(attend(case, softcap=0.5), definition(case, softcap=0.5))


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    case = build([(1, 1)], 2, 1, 8)
    nothing = case._replace(contexts=np.array([0], dtype=np.int32))
    assert not attend(nothing).any()


@settings(deadline=None, max_examples=30)
@given(
    context=st.integers(1, 600),
    split=st.integers(1, 600),
    shape=st.sampled_from([(1, 1), (6, 2), (9, 3), (8, 1)]),
)
def test_a_query_is_the_same_alone_and_in_a_chunk(context: int, split: int, shape: tuple[int, int]) -> None:
    queries = min(split, context)
    chunk = build([(context, queries)], *shape, 16)
    alone = chunk._replace(q=chunk.q[-1:], offsets=np.array([0, 1], dtype=np.int32), positions=chunk.positions[-1:])
    assert torch.equal(attend(chunk)[-1], attend(alone)[0])


@pytest.mark.parametrize("shape", [(1, 1, 8), (9, 3, 64), (32, 8, 128), (6, 2, 10)])
def test_this_machine_passes_the_self_check(shape: tuple[int, int, int]) -> None:
    check_attention(*shape, BLOCK)
