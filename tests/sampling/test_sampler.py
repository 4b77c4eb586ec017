import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.sampling.penalties import TokenCounts
from octavo_engine.sampling.sampler import NOT_FINITE, NOTHING_ALLOWED, RowSampling, sample
from octavo_engine.sampling.settings import prepare
from tests.sampling.meaning import ONE, kept, masks_of

V = 600


def row(position=3, prompt=3, drafts=(), tokens=(), **settings):
    prepared = prepare(V, **({"seed": 1} | settings))
    counts = TokenCounts(V, np.array(tokens, dtype=np.int32), prompt) if prepared.penalised else None
    return RowSampling(prepared, position, prompt, tuple(drafts), counts)


def logits_of(seed, rows=1):
    return (np.random.default_rng(seed).standard_normal((rows, V)) * 3).astype(np.float32)


def only(logits, one):
    return sample(logits, [one])[0]


# --- greedy -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 1e-6}, {"temperature": 1.0, "top_k": 1}])
def test_greedy_takes_the_lowest_id_of_equal_best(how):
    logits = np.zeros((1, V), dtype=np.float32)
    logits[0, [77, 401]] = 5
    assert only(logits, row(**how)).tokens == (77,)


def test_a_tiny_temperature_above_greedy_neither_overflows_nor_fails():
    logits = logits_of(3) * 1000
    assert only(logits, row(temperature=2e-5)).tokens == (int(logits.argmax()),)


# --- filters ----------------------------------------------------------------------------------------------------
# The definition itself: the kernel is held to it in tests/kernels/cpu/test_sampling.py.
LOGITS = np.log(np.array([0.5, 1.0, 0.25, 1.0, 0.25, 1.0], dtype=np.float32))
NO_FILTER = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def left(**filters):
    return np.flatnonzero(kept(LOGITS, **(NO_FILTER | filters))).tolist()


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [1]), (2, [1, 3]), (3, [1, 3, 5]), (4, [0, 1, 3, 5]), (5, [0, 1, 2, 3, 5])]
)
def test_top_k_keeps_k_and_prefers_low_ids_on_ties(k, expected):
    assert left(top_k=k) == expected


@pytest.mark.parametrize(
    ("p", "expected"), [(0.0, [1]), (0.25, [1]), (0.26, [1, 3]), (0.8, [0, 1, 3, 5]), (0.9, [0, 1, 2, 3, 5])]
)
def test_top_p_keeps_the_smallest_sufficient_set(p, expected):
    assert left(top_p=p) == expected


def test_min_p_is_relative_to_the_best():
    assert left(min_p=0.45) == [0, 1, 3, 5]


@given(
    seed=st.integers(0, 2**32),
    top_k=st.integers(0, V + 5),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    temperature=st.floats(2e-5, 5),
)
@settings(max_examples=200, deadline=None)
def test_weights_are_the_softmax_of_what_survives_every_filter(seed, top_k, top_p, min_p, temperature):
    logits = logits_of(seed)[0]
    logits[::3] = -np.inf
    weights = kept(logits, temperature, top_k, top_p, min_p)
    ranked = np.argsort(-logits, kind="stable")
    exact = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    alive = np.flatnonzero(weights)
    assert weights[ranked[0]] == ONE
    np.testing.assert_allclose(weights[alive], exact[alive] * ONE, rtol=1e-5, atol=1.01)
    assert not top_k or set(alive) <= set(ranked[:top_k])
    assert (exact[alive] >= min_p * (1 - 1e-5)).all()


def test_frequencies_follow_the_softmax():
    logits = np.full((1, V), -np.inf, dtype=np.float32)
    logits[0, [10, 300, 599]] = np.log([0.2, 0.5, 0.3])
    logits[0, logits[0] == -np.inf] = -1e30
    count = 6000
    rows = [row(position=p, seed=9) for p in range(3, 3 + count)]
    drawn = [s.tokens[0] for s in sample(np.repeat(logits, count, axis=0), rows)]
    shares = [drawn.count(token) / count for token in (10, 300, 599)]
    assert shares == pytest.approx([0.2, 0.5, 0.3], abs=0.025)


# --- what changes the logits ------------------------------------------------------------------------------------
def test_repetition_looks_at_prompt_and_output_presence_and_frequency_at_the_output():
    logits = np.full((1, V), -50, dtype=np.float32)
    logits[0, :4] = [10, 9.5, 9, -1]
    tokens = [0, 3, 1, 1]  # prompt 0 3, output 1 1
    greedy = {"temperature": 0.0, "tokens": tokens, "prompt": 2, "position": 4}
    assert only(logits, row(repetition_penalty=1.05, **greedy)).tokens == (0,)  # 9.52, 9.05, 9
    assert only(logits, row(repetition_penalty=1.2, **greedy)).tokens == (2,)
    assert only(logits, row(presence_penalty=2.0, **greedy)).tokens == (0,)  # the prompt is not punished
    assert only(logits, row(presence_penalty=-0.6, **greedy)).tokens == (1,)
    assert only(logits, row(frequency_penalty=-0.3, **greedy)).tokens == (1,)  # twice used: 10.1
    assert only(logits, row(frequency_penalty=-0.2, **greedy)).tokens == (0,)


def test_counts_grow_with_what_is_sampled_inside_one_step():
    logits = np.full((3, V), -50, dtype=np.float32)
    logits[:, :3] = [10, 9.5, 9.2]
    one = row(temperature=0.0, presence_penalty=1.0, drafts=(0, 1), tokens=[5, 5, 5])
    assert only(logits, one).tokens == (0, 1, 2)


def test_bias_comes_before_penalties_and_allowed_ids_bind():
    logits = np.full((1, V), -5, dtype=np.float32)
    logits[0, 1] = 3
    assert only(logits, row(temperature=0.0, logit_bias={7: 100.0})).tokens == (7,)
    assert only(logits, row(temperature=0.0, logit_bias={1: -100.0})).tokens == (0,)
    biased = row(temperature=0.0, logit_bias={7: 9.0}, repetition_penalty=2.0, tokens=[7], prompt=1, position=1)
    assert only(logits, biased).tokens == (1,)  # (-5 + 9) / 2 < 3
    assert only(logits, row(temperature=0.0, allowed_token_ids=(9, 300))).tokens == (9,)


def test_min_tokens_holds_back_end_and_stop_ids_until_then():
    logits = logits_of(4)
    end, second = np.argsort(-logits[0])[:2].tolist()
    for position, token in ((3, second), (4, second), (5, end)):
        one = row(position=position, temperature=0.0, min_tokens=2, held_back_ids=(end,))
        assert only(logits, one).tokens == (token,)


def test_ids_outside_the_vocabulary_are_refused():
    for bad in ({"logit_bias": {V: 1.0}}, {"allowed_token_ids": (-1,)}, {"held_back_ids": (V,)}):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            prepare(V, seed=0, **bad)


# --- company ----------------------------------------------------------------------------------------------------
KINDS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05, "top_p": 0.95, "top_k": 50},
    {"temperature": 0.9, "repetition_penalty": 1.3, "tokens": (1, 2, 3)},
    {"temperature": 0.0, "frequency_penalty": 0.5, "tokens": (1, 2, 3)},
    {"temperature": 1.0, "allowed_token_ids": tuple(range(0, V, 7))},
]


@given(order=st.permutations(range(len(KINDS))), seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_a_row_does_not_depend_on_its_neighbours(order, seed):
    logits = logits_of(seed, len(KINDS))
    alone = [only(logits[i : i + 1], row(seed=i, **kind)) for i, kind in enumerate(KINDS)]
    together = sample(logits[order], [row(seed=i, **KINDS[i]) for i in order])
    assert together == [alone[i] for i in order]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_fails_alone(bad):
    logits = logits_of(1, 3)
    healthy = sample(logits, [row(), row(), row()])
    logits[1, 17] = bad
    results = sample(logits, [row(), row(), row()])
    assert results[1] == ((), NOT_FINITE)
    assert [results[0], results[2]] == [healthy[0], healthy[2]]


def test_a_row_without_any_allowed_token_fails_alone():
    one = row(allowed_token_ids=(5,), min_tokens=1, held_back_ids=(5,))
    results = sample(logits_of(1, 2), [one, row()])
    assert results[0] == ((), NOTHING_ALLOWED)
    assert results[1].tokens


# --- grammars ---------------------------------------------------------------------------------------------------
def masked(logits, one, *allowed):
    first, masks = masks_of(allowed, V)
    return sample(logits, [one._replace(mask=first[0])], masks=masks)[0]


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 2.0}, {"temperature": 2.0, "top_p": 0.9}])
def test_only_what_the_grammar_allows_is_drawn(how):
    allowed = [0, 31, 32, 63, 64, 333, V - 1]
    drawn = {masked(logits_of(seed), row(seed=seed, **how), allowed).tokens[0] for seed in range(60)}
    assert drawn <= set(allowed)
    assert len(drawn) > 2


def test_a_grammar_that_allows_everything_changes_nothing():
    for seed in range(20):
        one = row(seed=seed, temperature=1.3)
        assert masked(logits_of(seed), one, range(V)) == only(logits_of(seed), one)


def test_a_row_without_a_grammar_is_not_changed_by_its_neighbour_s():
    logits = logits_of(4, 2)
    _, masks = masks_of([[7]], V)
    together = sample(logits, [row(temperature=0.0)._replace(mask=0), row(temperature=0.0)], masks=masks)
    assert [result.tokens for result in together] == [(7,), (int(logits[1].argmax()),)]


def test_min_tokens_yields_to_a_grammar_that_allows_nothing_but_to_end():
    end = {"min_tokens": 1, "held_back_ids": (5, 9)}
    assert masked(logits_of(1), row(**end), [5]).tokens == (5,)
    assert masked(logits_of(1), row(**end), [5, 9, 11]).tokens == (11,)
    assert masked(logits_of(1), row(**end), []).failed == NOTHING_ALLOWED


def test_allowed_ids_and_a_grammar_without_a_common_token_fail_the_row():
    assert masked(logits_of(1), row(allowed_token_ids=(5, 6)), [7, 8]).failed == NOTHING_ALLOWED
    assert masked(logits_of(1), row(allowed_token_ids=(5, 6)), [6, 7]).tokens == (6,)


def test_each_draft_is_held_to_the_mask_of_its_own_position():
    logits = np.zeros((3, V), dtype=np.float32)
    logits[:, 10] = 9
    one = row(temperature=0.0, drafts=(10, 10))
    assert masked(logits, one, range(V), range(V), range(V)).tokens == (10, 10, 10)
    assert masked(logits, one, range(V), [20], range(V)).tokens == (10, 20)


# --- drafts -----------------------------------------------------------------------------------------------------
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32),
    wrong_at=st.integers(0, 4),
)
@settings(max_examples=100, deadline=None)
def test_drafts_change_how_many_tokens_come_never_which(kind, seed, wrong_at):
    logits = logits_of(seed, 5)
    text, used = [], list(kind.get("tokens", (8, 8, 8)))
    for index in range(5):
        one = row(position=3 + index, seed=seed, **(kind | {"tokens": used}))
        token = only(logits[index : index + 1], one).tokens[0]
        text.append(token)
        used.append(token)
    drafts = text[:4]
    if wrong_at < 4:
        drafts[wrong_at] = (drafts[wrong_at] + 1) % V
    drafted = only(logits, row(seed=seed, drafts=drafts, **({"tokens": (8, 8, 8)} | kind)))
    assert list(drafted.tokens) == text[: wrong_at + 1]


def test_what_is_wrong_behind_a_rejected_draft_does_not_matter():
    logits = logits_of(2, 2)
    token = int(logits[0].argmax())
    logits[1] = np.nan
    assert only(logits, row(temperature=0.0, drafts=((token + 1) % V,))).tokens == (token,)
    assert only(logits, row(temperature=0.0, drafts=(token,))).failed == NOT_FINITE
