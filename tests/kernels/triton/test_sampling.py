"""Sampling on the GPU: the tokens of the C++ sampler, whatever the row is split into."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo_engine.sampling.sampler import RowSampling
from octavo_engine.sampling.sampler import sample as native_sample
from octavo_engine.sampling.settings import prepare
from octavo_kernels.cpu import _native
from octavo_kernels.triton.philox import uniform
from octavo_kernels.triton.sampling import (
    NOT_FINITE,
    ROW_WORDS,
    Draw,
    SamplingTuning,
    pack_rows,
    rows_in,
    sample,
    workspace,
)

SMALL = SamplingTuning(chunk=64, part=16, candidates=128, block=128, num_warps=1)
MIDDLE = SamplingTuning(chunk=1024, part=64, candidates=1024, block=4096, num_warps=1)
SIZES = (1, 15, 16, 63, 64, 65, 200, 257)

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


def rows_of(seed: int, rows: int, vocab: int, spread: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * spread).astype(np.float32)


def draw(kind: dict[str, Any]) -> Draw:
    return Draw(**kind, greedy=kind.get("temperature", 1.0) <= 1e-5)


def found(
    logits: NDArray[np.float32], kinds: list[dict[str, Any]], tuning: SamplingTuning = SMALL, **options: bool
) -> list[int]:
    """Sample each row of logits [R, V] as its kind says."""
    # One row more than there are, as captured steps have.
    buffer = np.empty((ROW_WORDS, len(kinds) + 1), np.int32)
    pack_rows([draw(kind) for kind in kinds], buffer)
    space = workspace(len(kinds) + 1, logits.shape[1], torch.device("cpu"), tuning)
    out = torch.empty(len(kinds), dtype=torch.int32)
    return sample(
        torch.from_numpy(logits), rows_in(torch.from_numpy(buffer)), out, space, tuning=tuning, **options
    ).tolist()


def meaning(logits: NDArray[np.float32], kinds: list[dict[str, Any]]) -> list[int]:
    """Return the C++ sampler's tokens."""
    rows = []
    for kind in kinds:
        position = kind.get("position", 0)
        own = {"seed": 0} | {name: value for name, value in kind.items() if name != "position"}
        rows.append(RowSampling(prepare(logits.shape[1], **own), position, 0))
    return [each.tokens[0] if each.tokens else NOT_FINITE for each in native_sample(logits, rows)]


@st.composite
def kinds(draw: st.DrawFn, vocab: int) -> dict[str, Any]:
    """Any settings; what is unusual is rare, so that plain rows come up too."""
    return {
        "seed": draw(st.integers(-(2**63), 2**63 - 1)),
        "choice": draw(st.integers(0, 5)),
        "position": draw(st.integers(0, 2**20)),
        "temperature": draw(st.sampled_from([0.0, 2e-5, 0.1, 0.7, 1.0, 1.0, 2.0])),
        "top_k": draw(st.sampled_from([0, 0, -1, 1, 2, 7, 50, vocab - 1, vocab, 10**18])),
        "top_p": draw(st.sampled_from([1.0, 1.0, 0.0, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999999])),
        "min_p": draw(st.sampled_from([0.0, 0.0, 1e-6, 0.05, 0.5, 1.0])),
    }


@given(
    data=st.data(), seed=st.integers(0, 2**32), vocab=st.sampled_from(SIZES), spread=st.sampled_from([0.2, 3, 50]),
    ties=st.booleans(),
)  # fmt: skip
@settings(max_examples=12, deadline=None, derandomize=True)
def test_any_step_gives_the_cpus_tokens(data: st.DataObject, seed: int, vocab: int, spread: float, ties: bool) -> None:
    chosen = data.draw(st.lists(kinds(vocab), min_size=1, max_size=4))
    logits = rows_of(seed, len(chosen), vocab, spread)
    if ties:
        logits = np.round(logits)
    assert found(logits, chosen) == meaning(logits, chosen)


@pytest.mark.parametrize("shape", ["normal", "flat", "peaked", "few values", "all equal"])
def test_a_larger_vocabulary_gives_the_cpus_tokens(shape: str) -> None:
    """Of the flat shapes more tokens are candidates than fit."""
    logits = rows_of(7, len(FILTERS), 2500)
    if shape == "flat":
        logits *= np.float32(1e-3)
    elif shape == "peaked":
        logits[:, 123] += 30
    elif shape == "few values":
        logits = np.round(logits)
    elif shape == "all equal":
        logits[:] = -2.5
    chosen = [kind | {"seed": seed} for seed, kind in enumerate(FILTERS)]
    assert found(logits, chosen, MIDDLE) == meaning(logits, chosen)


@pytest.mark.parametrize("kind", [FILTERS[0], FILTERS[1], FILTERS[-1]])
def test_a_row_alone_is_the_row_among_others(kind: dict[str, Any]) -> None:
    logits = rows_of(3, 3, 200)
    chosen = [kind | {"seed": i} for i in range(3)]
    alone = [found(logits[i : i + 1], chosen[i : i + 1])[0] for i in range(3)]
    assert found(logits, chosen) == alone


def test_of_equal_logits_the_lowest_ids_stay() -> None:
    logits = np.zeros((15, 70), np.float32)
    logits[:, 1::2] = -0.0
    chosen = [{"seed": seed, "top_k": 10, "top_p": (0.3, 0.77, 1.0)[seed % 3]} for seed in range(15)]
    tokens = found(logits, chosen)
    assert tokens == meaning(logits, chosen)
    assert all(token < round(10 * kind["top_p"] + 0.4999) for token, kind in zip(tokens, chosen, strict=True))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("kind", [FILTERS[0], FILTERS[1], FILTERS[5]])
def test_what_is_not_finite_fails_alone(kind: dict[str, Any]) -> None:
    bad = [np.nan, -np.nan, np.inf, -np.inf]
    logits = rows_of(1, 6, 200)
    healthy = found(logits[4:], [kind] * 2)
    for index, value in enumerate(bad):
        logits[index, (0, 17, 100, 199)[index]] = value
    assert found(logits, [kind] * 6) == [NOT_FINITE] * 4 + healthy


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_the_largest_numbers_are_finite() -> None:
    logits = np.full((len(FILTERS), 200), -3.4e38, np.float32)
    logits[:, 150] = 3.4e38
    assert found(logits, FILTERS) == [150] * len(FILTERS)


def test_launches_that_no_row_needs_can_be_left_out() -> None:
    logits = rows_of(5, 2, 200)
    greedy, plain = [{"temperature": 0.0}] * 2, [{"temperature": 1.0}, {"min_p": 0.1, "seed": 3}]
    assert found(logits, greedy, draws=False) == meaning(logits, greedy)
    assert found(logits, plain, filters=False) == meaning(logits, plain)


def test_no_rows_are_no_work() -> None:
    assert found(np.empty((0, 20), np.float32), []) == []


@triton.jit
def _uniforms(words: tl.tensor, out: tl.tensor) -> None:
    at = words + tl.program_id(0) * 4
    value = uniform(tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3))
    tl.store(out + tl.program_id(0), value)


def test_uniforms_are_the_cpus() -> None:
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (8, 4)).astype(np.int32)
    words[0], words[1] = 0, -1
    out = torch.empty(8, dtype=torch.float64)
    _uniforms[(8,)](torch.from_numpy(words), out)
    low, high, choice, position = words.astype(np.int64).T & 0xFFFF_FFFF
    wanted = [
        _native.uniform(int(a) | int(b) << 32, int(c), int(d))
        for a, b, c, d in zip(low, high, choice, position, strict=True)
    ]
    assert out.tolist() == wanted


def test_what_does_not_fit_is_refused() -> None:
    logits, buffer = torch.zeros(2, 200), np.empty((ROW_WORDS, 2), np.int32)
    pack_rows([], buffer)
    rows, out = rows_in(torch.from_numpy(buffer)), torch.empty(2, dtype=torch.int32)
    space = workspace(2, 200, torch.device("cpu"), SMALL)
    with pytest.raises(ValueError, match="float32"):
        sample(logits.double(), rows, out, space, tuning=SMALL)
    with pytest.raises(ValueError, match="each of the 3 rows"):
        sample(torch.zeros(3, 200), rows, out, space, tuning=SMALL)
    with pytest.raises(ValueError, match="one for each row of logits"):
        sample(logits, rows, out[:1], space, tuning=SMALL)
    with pytest.raises(ValueError, match="workspace is for other logits"):
        sample(logits, rows, out, space, tuning=MIDDLE)
    with pytest.raises(ValueError, match="or wider"):
        pack_rows([Draw()] * 3, buffer)
    with pytest.raises(ValueError, match="temperature is above 0"):
        pack_rows([Draw(temperature=0.0)], buffer)
    with pytest.raises(ValueError, match="contiguous"):
        rows_in(torch.zeros(ROW_WORDS, 2))
