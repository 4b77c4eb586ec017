"""What changes logits on the GPU: bit for bit the definition's, and with sampling the CPU's tokens and failures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from octavo_engine.sampling.penalties import TokenCounts
from octavo_engine.sampling.sampler import RowSampling
from octavo_engine.sampling.sampler import sample as native_sample
from octavo_engine.sampling.settings import prepare
from octavo_kernels.triton.adjust import (
    AdjustCapacity,
    Adjustment,
    AdjustTuning,
    adjust,
    adjust_buffer_words,
    adjust_rows_in,
    count_sampled,
    count_tokens,
    pack_adjustments,
)
from octavo_kernels.triton.sampling import ROW_WORDS, Draw, SamplingTuning, pack_rows, rows_in, sample, workspace
from tests.sampling.meaning import adjust as meaning_of_adjust
from tests.sampling.meaning import masks_of

SMALL = AdjustTuning(chunk=64, num_warps=1)
SAMPLING = SamplingTuning(chunk=64, part=16, candidates=128, block=128, num_warps=1)
SIZES = (1, 32, 33, 64, 65, 150)
PLAIN: dict[str, Any] = {
    "prompt": (), "output": (), "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
    "min_tokens": 0, "logit_bias": {}, "allowed_token_ids": (), "held_back_ids": (), "grammar": None,
}  # fmt: skip


def rows_of(seed: int, rows: int, vocab: int) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * 3).astype(np.float32)


def penalised(kind: dict[str, Any]) -> bool:
    return bool(kind["presence_penalty"] or kind["frequency_penalty"] or kind["repetition_penalty"] != 1)


def counts_of(kinds: list[dict[str, Any]], vocab: int) -> tuple[list[int], Tensor | None]:
    """Return each row's row of counts, -1 for none, and the counts."""
    rows, count = [], 0
    for kind in kinds:
        rows.append(count if penalised(kind) else -1)
        count += penalised(kind)
    if count == 0:
        return rows, None
    counts = torch.full((count, vocab), 77, dtype=torch.int32)
    for row, kind in zip(rows, kinds, strict=True):
        if row >= 0:
            tokens = torch.tensor([*kind["prompt"], *kind["output"]], dtype=torch.int32)
            count_tokens(counts, row, tokens, len(kind["prompt"]))
    return rows, counts


def adjusted(
    logits: NDArray[np.float32], kinds: list[dict[str, Any]], drafts: tuple[tuple[int, ...], ...] = ()
) -> tuple[Tensor, Tensor]:
    """Return the logits [R, V] as the kernels change them, and their status. drafts: those before each row."""
    vocab = logits.shape[1]
    counted, counts = counts_of(kinds, vocab)
    allowed, allowed_masks = masks_of([kind["allowed_token_ids"] or None for kind in kinds], vocab)
    grammars, grammar_masks = masks_of([kind["grammar"] for kind in kinds], vocab)
    rows = [
        Adjustment(
            bias_ids=sorted(kind["logit_bias"]), bias=[kind["logit_bias"][i] for i in sorted(kind["logit_bias"])],
            count_row=counted[i], repetition=kind["repetition_penalty"], presence=kind["presence_penalty"],
            frequency=kind["frequency_penalty"], drafts=drafts[i] if drafts else (),
            allowed=allowed[i], grammar=grammars[i],
            generated=len(kind["output"]), min_tokens=kind["min_tokens"], held_back=sorted(set(kind["held_back_ids"])),
        )
        for i, kind in enumerate(kinds)
    ]  # fmt: skip
    # One row more than there are, as captured steps have.
    capacity = AdjustCapacity(len(rows) + 1, biases=40, held_back=40, drafts=20)
    buffer = np.full(adjust_buffer_words(capacity), 99, np.int32)
    pack_adjustments(rows, buffer, capacity)
    result, status = torch.from_numpy(logits.copy()), torch.empty(len(rows), dtype=torch.int32)
    adjust(
        result, adjust_rows_in(torch.from_numpy(buffer), capacity), status, counts=counts,
        allowed_masks=None if allowed_masks is None else torch.from_numpy(allowed_masks),
        grammar_masks=None if grammar_masks is None else torch.from_numpy(grammar_masks), tuning=SMALL,
    )  # fmt: skip
    return result, status


def sampled(logits: NDArray[np.float32], kinds: list[dict[str, Any]], draws: list[Draw]) -> list[int]:
    changed, status = adjusted(logits, kinds)
    buffer = np.empty((ROW_WORDS, len(kinds)), np.int32)
    pack_rows(draws, buffer)
    space = workspace(len(kinds), logits.shape[1], torch.device("cpu"), SAMPLING)
    out = torch.empty(len(kinds), dtype=torch.int32)
    return sample(changed, rows_in(torch.from_numpy(buffer)), out, space, status, tuning=SAMPLING).tolist()


def natively_sampled(logits: NDArray[np.float32], kinds: list[dict[str, Any]], draws: list[Draw]) -> list[int]:
    vocab, rows = logits.shape[1], []
    first, masks = masks_of([kind["grammar"] for kind in kinds], vocab)
    for kind, draw, mask in zip(kinds, draws, first, strict=True):
        options = {name: value for name, value in kind.items() if name not in ("prompt", "output", "grammar")}
        prepared = prepare(vocab, seed=draw.seed, temperature=draw.temperature, top_p=draw.top_p, **options)
        tokens = np.array([*kind["prompt"], *kind["output"]], dtype=np.int32)
        counts = TokenCounts(vocab, tokens, len(kind["prompt"])) if prepared.penalised else None
        rows.append(RowSampling(prepared, len(tokens), len(kind["prompt"]), (), counts, mask))
    results = native_sample(logits, rows, None, masks)
    return [each.tokens[0] if each.tokens else -1 if "not finite" in each.failed else -2 for each in results]


@st.composite
def kinds(draw: st.DrawFn, vocab: int) -> dict[str, Any]:
    ids = st.lists(st.integers(0, vocab - 1), max_size=6)
    return {
        "presence_penalty": draw(st.sampled_from([0.0, 0.0, -1.5, 0.7])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.0, -0.3, 1.1])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 0.8, 1.3])),
        "min_tokens": draw(st.sampled_from([0, 0, 3])),
        "held_back_ids": draw(ids),
        "logit_bias": draw(st.dictionaries(st.integers(0, vocab - 1), st.floats(-100, 100, width=32), max_size=3)),
        "allowed_token_ids": draw(st.just([]) | ids),
        "grammar": draw(st.none() | ids),
        "prompt": draw(ids),
        "output": draw(ids),
    }


def require_meaning(logits: NDArray[np.float32], chosen: list[dict[str, Any]]) -> None:
    changed, status = adjusted(logits, chosen)
    for index, kind in enumerate(chosen):
        np.testing.assert_array_equal(changed[index].numpy(), meaning_of_adjust(logits[index], **kind), str(kind))
    assert (status >= 0).all()
    draws = [Draw(seed=i, position=len(k["prompt"]) + len(k["output"]), top_p=0.9) for i, k in enumerate(chosen)]
    assert sampled(logits, chosen, draws) == natively_sampled(logits, chosen, draws)


@given(data=st.data(), seed=st.integers(0, 2**32), vocab=st.sampled_from(SIZES))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_any_step_changes_the_logits_as_the_cpu_does(data: st.DataObject, seed: int, vocab: int) -> None:
    chosen = data.draw(st.lists(kinds(vocab), min_size=1, max_size=3))
    require_meaning(rows_of(seed, len(chosen), vocab), chosen)


@pytest.mark.parametrize("vocab", SIZES)
def test_everything_at_once_at_the_edges_of_a_chunk(vocab: int) -> None:
    last = vocab - 1
    everything = {
        "presence_penalty": 0.7, "frequency_penalty": 1.1, "repetition_penalty": 1.3, "min_tokens": 9,
        "held_back_ids": (last // 2,), "logit_bias": {0: 2.5, last: -1.0}, "allowed_token_ids": range(0, vocab, 2),
        "grammar": range(last // 3, vocab), "prompt": (0, last, last), "output": (last, last // 2, last),
    }  # fmt: skip
    require_meaning(rows_of(vocab, 2, vocab), [everything, PLAIN])


def test_min_tokens_yields_to_a_grammar_that_allows_nothing_but_to_end() -> None:
    held = PLAIN | {"min_tokens": 5, "held_back_ids": (3, 7)}
    chosen = [held | {"grammar": (3, 7)}, held | {"grammar": (3, 140)}, held | {"allowed_token_ids": (3,)}]
    logits = rows_of(0, 3, 150)
    require_meaning(logits, chosen)
    assert sampled(logits, chosen, [Draw(greedy=True)] * 3)[1:] == [140, -2]


def test_drafts_before_a_row_count_as_output() -> None:
    """A row for each draft and one more, which the CPU works out one after another."""
    kind = PLAIN | {
        "presence_penalty": 2.0, "frequency_penalty": 1.1, "repetition_penalty": 1.3, "prompt": (0, 3), "output": (3, 3)
    }  # fmt: skip
    logits, drafts = rows_of(5, 4, 150), (3, 149, 3)
    before = tuple(drafts[:i] for i in range(4))
    changed, _ = adjusted(logits, [kind] * 4, before)
    for i in range(4):
        own = kind | {"output": (*kind["output"], *before[i])}
        np.testing.assert_array_equal(changed[i].numpy(), meaning_of_adjust(logits[i], **own))


def test_logits_that_were_not_finite_fail_whatever_hides_them() -> None:
    kind = PLAIN | {"allowed_token_ids": (1, 2, 3)}
    logits = rows_of(0, 5, 150)
    healthy = sampled(logits, [kind] * 5, [Draw(greedy=True)] * 5)
    for row, bad in enumerate((np.nan, -np.nan, np.inf, -np.inf)):
        logits[row, 100] = bad
    assert sampled(logits, [kind] * 5, [Draw(greedy=True)] * 5) == [-1] * 4 + healthy[4:]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_an_adjustment_that_overflows_fails_its_row() -> None:
    logits = np.full((1, 150), 3e38, np.float32)
    punished = [PLAIN | {"repetition_penalty": 0.1, "prompt": (5,)}]
    assert sampled(logits, punished, [Draw()]) == natively_sampled(logits, punished, [Draw()]) == [-1]


def test_a_row_alone_is_the_row_among_others() -> None:
    chosen = [
        PLAIN | {"repetition_penalty": 1.3, "prompt": (1, 2), "output": (2, 64)},
        PLAIN | {"grammar": (1, 90)},
        PLAIN | {"logit_bias": {64: 3.0}},
    ]
    logits = rows_of(1, 3, 150)
    together, _ = adjusted(logits, chosen)
    alone = [adjusted(logits[i : i + 1], chosen[i : i + 1])[0] for i in range(3)]
    assert torch.equal(together, torch.cat(alone))


def test_sampled_tokens_are_counted_where_they_belong() -> None:
    counts = torch.zeros(3, 300, dtype=torch.int32)
    count_tokens(counts, 1, torch.tensor([5, 5, 299, 6, 299], dtype=torch.int32), 3)
    assert counts[1, [4, 5, 6, 299]].tolist() == [0, 1, 2, 3]
    rows, tokens = torch.tensor([1, -1, 2, 1, 0], dtype=torch.int32), torch.tensor([6, 8, 8, -1], dtype=torch.int32)
    count_sampled(counts, rows, tokens)
    assert counts[1, [4, 5, 6, 299]].tolist() == [0, 1, 4, 3]
    assert counts[2].nonzero().tolist() == [[8]]
    assert not counts[0].any()
    count_tokens(counts, 1, torch.tensor([], dtype=torch.int32), 0)
    assert not counts[1].any()


def test_what_does_not_fit_is_refused() -> None:
    capacity = AdjustCapacity(1, 1, 1, 1)
    buffer = np.empty(adjust_buffer_words(capacity), np.int32)
    with pytest.raises(ValueError, match="make a larger one"):
        pack_adjustments([Adjustment(held_back=(1, 2))], buffer, capacity)
    with pytest.raises(ValueError, match="must be int32"):
        adjust_rows_in(torch.from_numpy(buffer), capacity._replace(rows=2))
    pack_adjustments([], buffer, capacity)
    rows, status = adjust_rows_in(torch.from_numpy(buffer), capacity), torch.empty(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="each of the 2 rows"):
        adjust(torch.zeros(2, 40), rows, status)
    with pytest.raises(ValueError, match="they must agree"):
        adjust(torch.zeros(1, 40), rows, status, counts=torch.zeros(1, 41, dtype=torch.int32))
    with pytest.raises(ValueError, match="Masks must be int32"):
        adjust(torch.zeros(1, 40), rows, status, grammar_masks=torch.zeros(1, 2))
    with pytest.raises(ValueError, match="so none is 1"):
        count_tokens(torch.zeros(1, 40, dtype=torch.int32), 1, torch.tensor([1]), 1)
