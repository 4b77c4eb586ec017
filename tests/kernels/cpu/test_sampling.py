"""Sampling on every variant: the tokens that the numpy definition gives, at the edges of every filter."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo_engine.sampling.logprobs import logprobs, top_logprobs
from octavo_engine.sampling.penalties import TokenCounts
from octavo_engine.sampling.sampler import RowSampling, sample
from octavo_engine.sampling.settings import prepare
from octavo_kernels.cpu._native import Pool
from tests.sampling.meaning import masks_of, token_of

SIZES = (1, 15, 16, 17, 255, 256, 257, 1000, 5003)
FAILED = {-1: "not finite", -2: "No token is allowed"}


def row(vocab: int, kind: dict[str, Any], position: int | None = None) -> RowSampling:
    options = dict(kind)
    prompt, output = options.pop("prompt", ()), options.pop("output", ())
    options.pop("grammar", None)
    prepared = prepare(vocab, **({"seed": 0} | options))
    tokens = np.array([*prompt, *output], dtype=np.int32)
    counts = TokenCounts(vocab, tokens, len(prompt)) if prepared.penalised else None
    return RowSampling(prepared, len(tokens) if position is None else position, len(prompt), (), counts)


def meaning(logits: NDArray[np.float32], kinds: list[dict[str, Any]]) -> list[int]:
    """Return what the definition gives for each row of logits [R, V]."""
    return [token_of(logits[index], **kind) for index, kind in enumerate(kinds)]


def require_meaning(
    pool: Pool, logits: NDArray[np.float32], kinds: list[dict[str, Any]], tokens: list[int] | None = None
) -> None:
    """Sample each row of logits [R, V] as its kind says, all in one call."""
    vocab = logits.shape[1]
    first, masks = masks_of([kind.get("grammar") for kind in kinds], vocab)
    rows = [row(vocab, kind)._replace(mask=mask) for kind, mask in zip(kinds, first, strict=True)]
    results = sample(logits, rows, pool, masks)
    for index, (result, kind, wanted) in enumerate(zip(results, kinds, tokens or meaning(logits, kinds), strict=True)):
        if wanted < 0:
            assert not result.tokens
            assert FAILED[wanted] in result.failed
        else:
            assert result == ((wanted,), ""), (index, kind)


def rows_of(seed: int, rows: int, vocab: int, spread: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * spread).astype(np.float32)


@st.composite
def kinds(draw: st.DrawFn, vocab: int) -> dict[str, Any]:
    """Any settings; what is unusual is rare, so that plain rows come up too."""
    ids = st.lists(st.integers(0, vocab - 1), max_size=6)
    return {
        "seed": draw(st.integers(-(2**63), 2**63 - 1)),
        "choice": draw(st.integers(0, 5)),
        "temperature": draw(st.sampled_from([0.0, 2e-5, 0.1, 0.7, 1.0, 1.0, 2.0])),
        "top_k": draw(st.sampled_from([0, 0, -1, 1, 2, 7, 50, vocab - 1, vocab, 10**18])),
        "top_p": draw(st.sampled_from([1.0, 1.0, 0.0, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999999])),
        "min_p": draw(st.sampled_from([0.0, 0.0, 1e-6, 0.05, 0.5, 1.0])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.0, 0.0, -1.5, 0.7])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.0, 0.0, -0.3, 1.1])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 1.0, 0.8, 1.3])),
        "min_tokens": draw(st.sampled_from([0, 0, 3])),
        "held_back_ids": draw(ids),
        "logit_bias": draw(st.dictionaries(st.integers(0, vocab - 1), st.floats(-100, 100, width=32), max_size=3)),
        "allowed_token_ids": draw(st.just([]) | ids),
        "grammar": draw(st.none() | ids),
        "prompt": draw(ids),
        "output": draw(ids),
    }


@given(data=st.data(), seed=st.integers(0, 2**32), vocab=st.sampled_from(SIZES), spread=st.sampled_from([0.2, 3, 50]))
@settings(max_examples=60, deadline=None)
def test_any_step_gives_the_definitions_tokens(
    pool: Pool, data: st.DataObject, seed: int, vocab: int, spread: float
) -> None:
    chosen = data.draw(st.lists(kinds(vocab), min_size=1, max_size=6))
    require_meaning(pool, rows_of(seed, len(chosen), vocab, spread), chosen)


FILTERS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.6, "top_k": 40},
    {"top_k": 300},
    {"top_k": 3000},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.5, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.02},
    {"temperature": 1.0, "top_k": 100, "top_p": 0.8, "min_p": 0.01},
]


@cache
def large(shape: str) -> tuple[NDArray[np.float32], list[dict[str, Any]], list[int]]:
    """Return logits of a large vocabulary, kinds and the tokens: every variant is held to the same."""
    logits = rows_of(7, 2 * len(FILTERS), 49_152)
    if shape == "flat":
        logits *= np.float32(1e-3)
    elif shape == "peaked":
        logits[:, 123] += 30
    elif shape == "few values":
        logits = np.round(logits)
    elif shape == "all equal":
        logits[:] = -2.5
    kinds = [kind | {"seed": seed} for seed in range(2) for kind in FILTERS]
    return logits, kinds, meaning(logits, kinds)


@pytest.mark.parametrize("shape", ["normal", "flat", "peaked", "few values", "all equal"])
def test_a_large_vocabulary_gives_the_definitions_tokens(pool: Pool, shape: str) -> None:
    require_meaning(pool, *large(shape))


@pytest.mark.parametrize("kind", FILTERS)
def test_a_row_alone_is_the_row_among_others(pool: Pool, kind: dict[str, Any]) -> None:
    """Alone, the threads share its vocabulary."""
    logits = rows_of(3, 4, 5003)
    together = sample(logits, [row(5003, kind | {"seed": i}) for i in range(4)], pool)
    alone = [sample(logits[i : i + 1], [row(5003, kind | {"seed": i})], pool)[0] for i in range(4)]
    assert together == alone


@pytest.mark.parametrize("top_p", [0.3, 0.77, 1.0])
def test_of_equal_logits_the_lowest_ids_stay(pool: Pool, top_p: float) -> None:
    logits = np.zeros((1, 700), np.float32)
    logits[0, 1::2] = -0.0
    drawn = [
        sample(logits, [row(700, {"seed": s, "top_k": 10, "top_p": top_p})], pool)[0].tokens[0] for s in range(200)
    ]
    assert set(drawn) == set(range(round(10 * top_p + 0.4999)))


@pytest.mark.parametrize("kind", FILTERS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 17, 299])
def test_what_is_not_finite_fails_alone(pool: Pool, kind: dict[str, Any], bad: float, at: int) -> None:
    logits = rows_of(1, 3, 300)
    healthy = sample(logits, [row(300, kind)] * 3, pool)
    logits[1, at] = bad
    results = sample(logits, [row(300, kind)] * 3, pool)
    assert "not finite" in results[1].failed
    assert (results[0], results[2]) == (healthy[0], healthy[2])


def test_the_largest_numbers_are_finite(pool: Pool) -> None:
    logits = np.full((1, 300), -3.4e38, np.float32)
    logits[0, 200] = 3.4e38
    for kind in FILTERS:
        assert sample(logits, [row(300, kind)], pool)[0].tokens == (200,)


def test_an_adjustment_that_overflows_fails_its_row(pool: Pool) -> None:
    logits = np.full((1, 300), 3e38, np.float32)
    punished = row(300, {"repetition_penalty": 0.1, "prompt": (5,)})
    assert "not finite" in sample(logits, [punished], pool)[0].failed


def test_wrong_shapes_and_foreign_settings_are_refused(pool: Pool) -> None:
    logits = rows_of(0, 2, 300)
    with pytest.raises(ValueError, match="for every row and every draft"):
        sample(logits, [row(300, {})], pool)
    with pytest.raises(ValueError, match="another vocabulary"):
        sample(logits, [row(301, {}), row(300, {})], pool)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        TokenCounts(300, np.array([300], np.int32), 1)


@pytest.mark.parametrize("vocab", SIZES)
def test_log_probabilities_are_the_log_softmax(pool: Pool, vocab: int) -> None:
    logits = rows_of(2, 5, vocab, 8)
    exact = logits.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    tokens = np.random.default_rng(0).integers(0, vocab, 5).astype(np.int32)
    together = logprobs(logits, tokens, pool)
    np.testing.assert_allclose(together, exact[np.arange(5), tokens], rtol=1e-6, atol=1e-6)
    assert together.tolist() == [logprobs(logits[i : i + 1], tokens[i : i + 1], pool)[0] for i in range(5)]
    count = min(vocab, 20)
    ids, values = top_logprobs(logits, count, pool)
    assert np.array_equal(ids, np.argsort(-logits, axis=1, kind="stable")[:, :count])
    np.testing.assert_allclose(values, np.take_along_axis(exact, ids.astype(np.int64), 1), rtol=1e-6, atol=1e-6)


def test_log_probabilities_of_a_row_that_is_not_finite_are_nan(pool: Pool) -> None:
    logits = rows_of(2, 3, 300)
    logits[1, 7] = np.nan
    values = logprobs(logits, np.array([1, 2, 3], np.int32), pool)
    assert np.isnan(values).tolist() == [False, True, False]
    assert np.isnan(top_logprobs(logits, 2, pool)[1][1]).all()
    with pytest.raises(ValueError, match="outside the vocabulary"):
        logprobs(logits, np.array([1, 2, 300], np.int32), pool)
