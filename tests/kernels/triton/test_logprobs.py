"""Log-probabilities on the GPU: the log-softmax, ranks, and the most probable tokens in the CPU's order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from octavo_engine.sampling.logprobs import logprobs as native_logprobs
from octavo_engine.sampling.logprobs import top_logprobs as native_top_logprobs
from octavo_kernels.triton.logprobs import PASS, Logprobs, LogprobsTuning, logprobs, logprobs_workspace

SMALL = LogprobsTuning(chunk=64, num_warps=1)
SIZES = (1, 15, 63, 64, 65, 300)


def rows_of(seed: int, rows: int, vocab: int) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * 8).astype(np.float32)


def scored(logits: NDArray[np.float32], tokens: list[int], count: int) -> Logprobs:
    rows, vocab = logits.shape
    out = Logprobs(
        torch.empty(rows), torch.empty(rows, dtype=torch.int32), torch.empty(rows, count, dtype=torch.int32),
        torch.empty(rows, count),
    )  # fmt: skip
    space = logprobs_workspace(rows + 1, vocab, torch.device("cpu"), SMALL)
    return logprobs(torch.from_numpy(logits), torch.tensor(tokens, dtype=torch.int32), out, space, SMALL)


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize("ties", [False, True])
def test_what_is_found_is_the_cpus(vocab: int, ties: bool) -> None:
    logits = rows_of(vocab, 3, vocab)
    if ties:
        logits = np.round(logits / 4)
        logits[logits == 0] = np.float32(-0.0)
        logits[:, :1] = 0
    tokens, count = [0, vocab - 1, vocab // 2], min(vocab, 7)
    found = scored(logits, tokens, count)
    wanted = native_logprobs(logits, np.array(tokens, np.int32))
    np.testing.assert_allclose(found.logprobs.numpy(), wanted, rtol=1e-6, atol=1e-6)
    own = logits[np.arange(3), tokens][:, None]
    assert found.ranks.tolist() == (1 + (logits > own).sum(axis=1)).tolist()
    ids, values = native_top_logprobs(logits, count)
    assert found.ids.tolist() == ids.tolist()
    np.testing.assert_allclose(found.values.numpy(), values, rtol=1e-6, atol=1e-6)


def test_more_alternatives_than_a_pass_finds() -> None:
    logits, count = np.round(rows_of(1, 2, 150)), 2 * PASS + 3
    found = scored(logits, [0, 0], count)
    assert found.ids.tolist() == np.argsort(-logits, axis=1, kind="stable")[:, :count].tolist()
    np.testing.assert_allclose(found.values.numpy(), native_top_logprobs(logits, count)[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_nan_alone(bad: float) -> None:
    logits = rows_of(2, 3, 150)
    healthy = scored(logits, [5, 6, 7], 4)
    logits[1, 100] = bad
    found = scored(logits, [5, 6, 7], 4)
    assert found.logprobs.isnan().tolist() == [False, True, False]
    assert found.values[1].isnan().all()
    for now, before in zip(found, healthy, strict=True):
        assert torch.equal(now[[0, 2]], before[[0, 2]])


def test_a_row_alone_is_the_row_among_others() -> None:
    logits = rows_of(3, 3, 300)
    together = scored(logits, [5, 6, 7], 4)
    for row in range(3):
        alone = scored(logits[row : row + 1], [5 + row], 4)
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, together, strict=True))


def test_a_failed_rows_token_has_no_probability() -> None:
    found = scored(rows_of(4, 2, 65), [-1, -2], 0)
    assert found.logprobs.isnan().all()
    assert found.ranks.tolist() == [0, 0]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_extreme_logits_are_finite() -> None:
    logits = np.full((1, 150), -3.4e38, np.float32)
    logits[0, 70] = 3.4e38
    found = scored(logits, [70], 2)
    assert (found.logprobs.tolist(), found.ranks.tolist(), found.ids.tolist()) == ([0.0], [1], [[70, 0]])


def test_what_does_not_fit_is_refused() -> None:
    logits, tokens = torch.zeros(2, 40), torch.zeros(2, dtype=torch.int32)
    space = logprobs_workspace(2, 40, torch.device("cpu"), SMALL)
    out = Logprobs(torch.empty(2), tokens.clone(), torch.empty(2, 3, dtype=torch.int32), torch.empty(2, 3))
    with pytest.raises(ValueError, match="float32"):
        logprobs(logits.double(), tokens, out, space, SMALL)
    with pytest.raises(ValueError, match="one for each row"):
        logprobs(logits, tokens[:1], out, space, SMALL)
    with pytest.raises(ValueError, match="n at most 40"):
        logprobs(logits, tokens, out._replace(ids=out.ids[:, :2]), space, SMALL)
    with pytest.raises(ValueError, match="workspace is for other logits"):
        logprobs(torch.zeros(2, 400), tokens, out, space, SMALL)
