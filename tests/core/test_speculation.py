"""Speculation: what is guessed, and when it is worth a draft."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.core.ngram import MAX_MATCH, MIN_MATCH, NgramIndex
from octavo_engine.core.speculation import PromptLookup
from octavo_engine.core.step_costs import StepCosts

BANDWIDTH = dict.fromkeys(range(1, 17), 0.003)
"""A step that waits for memory: rows are free."""
COMPUTE = {rows: 0.0006 * rows for rows in range(1, 80)}
"""A step that computes: a row costs what every row costs."""


# --- look-up ----------------------------------------------------------------------------------------------------
def longest_match(tokens):
    """By looking everywhere: the length of the longest earlier place of the text's end, 0 if there is none."""
    lengths = []
    for end in range(1, len(tokens) - 1):
        length = 0
        while length < min(MAX_MATCH, end + 1) and tokens[end - length] == tokens[len(tokens) - 1 - length]:
            length += 1
        lengths.append(length)
    return max((length for length in lengths if length >= MIN_MATCH), default=0)


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 7))
def test_a_match_is_an_earlier_place_of_the_end(tokens, grow):
    index = NgramIndex()
    for size in range(0, len(tokens) + 1, grow):
        text = tokens[:size]
        match = index.find(text)
        if match is None:
            assert longest_match(text) == 0
            continue
        assert MIN_MATCH <= match.length <= longest_match(text)
        assert text[match.source - match.length : match.source] == text[-match.length :]
        assert match.source < len(text)


@given(st.lists(st.integers(0, 40), min_size=20, max_size=60), st.integers(0, 10))
def test_the_longest_match_is_found_where_pairs_are_rare(tokens, again):
    text = [*tokens, *tokens[again : again + 9]]
    match = NgramIndex().find(text)
    assert match is not None
    rare = all(text.count(pair) <= 4 for pair in text)
    assert not rare or match.length == longest_match(text)


# --- costs ------------------------------------------------------------------------------------------------------
def costs(table, times=30):
    known = StepCosts()
    for _ in range(times):
        for rows, seconds in table.items():
            known.observe(rows, seconds)
    return known


@pytest.mark.parametrize("rows", [1, 4, 16, 64, 200])
def test_a_row_costs_what_steps_of_about_that_size_took_longer(rows):
    table = {r: 0.002 + 0.0005 * r for r in range(1, 260)}
    known = costs(table)
    assert known.seconds(rows) == pytest.approx(table[rows], rel=0.02)
    assert known.slope(rows) == pytest.approx(0.0005, rel=0.05)


def test_free_rows_and_dear_rows_are_told_apart():
    table = {r: max(0.009, 0.0006 * r) for r in range(1, 80)}
    known = costs(table)
    assert known.slope(1) < 0.0001
    assert known.slope(64) == pytest.approx(0.0006, rel=0.05)


def test_without_a_second_size_every_token_is_presumed_to_cost_the_same():
    known = costs({64: 0.04})
    assert known.slope(64) == pytest.approx(0.04 / 64)
    assert known.line(1) is None
    assert known.slope(1) == float("inf")


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0.001, 0.1)), min_size=1, max_size=60), st.integers(1, 300))
def test_more_tokens_never_seem_cheaper_nor_dearer_than_all_before(measurements, rows):
    known = StepCosts()
    for tokens, seconds in measurements:
        known.observe(tokens, seconds)
    line = known.line(rows)
    assert line is None or 0 <= line.slope <= line.seconds / line.tokens * (1 + 1e-9)


def test_what_was_measured_long_ago_is_forgotten():
    known = costs({1: 0.003, 9: 0.03})
    assert known.slope(1) > 0.002
    for _ in range(3000):
        known.observe(1, 0.003)
    assert known.slope(1) == pytest.approx(0.003)
    for _ in range(5):
        known.observe(9, 0.0035)
    assert known.slope(1) < 0.0003


# --- guesses ----------------------------------------------------------------------------------------------------
def lookup(table=BANDWIDTH):
    source = PromptLookup(8)
    for _ in range(20):
        for rows, seconds in table.items():
            source.measured(rows, 0, seconds)
    return source


def write(source, text, start, running=1, sequence=0):
    """Let `text` be written from `start` on as a scheduler would; returns (tokens, steps, drafted)."""
    known, steps, drafted = start, 0, 0
    while known < len(text):
        worthwhile = source.worthwhile(running)
        drafts = source.propose(sequence, text[:known], len(text) - known - 1, running, running) if worthwhile else ()
        assert len(drafts) <= 8
        drafted += len(drafts)
        if drafts:
            source.measured(running + len(drafts), len(drafts), source.costs.seconds(running + len(drafts)))
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == text[known + accepted]:
            accepted += 1
        known += accepted + 1
        steps += 1
    return len(text) - start, steps, drafted


def test_nothing_is_guessed_before_a_step_was_measured():
    assert not PromptLookup(8).worthwhile(1)
    assert PromptLookup(8).propose(0, [1, 2, 3] * 9, 8, 1, 1) == ()


def test_a_text_that_repeats_itself_is_written_several_tokens_a_step():
    tokens, steps, _ = write(lookup(), list(range(40)) * 20, 80)
    assert tokens / steps > 6


def test_a_guess_goes_on_beyond_the_end_of_what_it_copies():
    source = lookup()
    assert source.propose(0, [5, 1, 2, 1, 2, 1, 2], 7, 1, 1)[:2] == (1, 2)
    write(source, [7, 8] * 60, 10, sequence=1)
    assert source.propose(1, [7, 8] * 70, 8, 1, 1) == (7, 8) * 4


def test_guesses_that_do_not_come_true_die_out():
    draw = random.Random(3)
    text = [draw.randrange(4) for _ in range(2000)]
    tokens, _, drafted = write(lookup({1: 0.003, 2: 0.0045, 9: 0.012}), text, 100)
    assert drafted < 0.05 * tokens
    assert write(lookup(BANDWIDTH), text, 100)[2] > drafted


def test_where_a_row_costs_what_every_row_costs_drafts_are_trials_and_trials_grow_rare():
    source = lookup(COMPUTE)
    asked = [source.worthwhile(64) for _ in range(7)]
    assert not any(asked)
    assert not source._texts, "nothing is even looked for"
    drafted = [write(source, list(range(40)) * 60, 80, running=64, sequence=n)[2] for n in range(3)]
    assert drafted[0] < 200
    assert drafted[2] < drafted[0] / 3


def test_guesses_return_with_the_load_that_they_pay_at():
    source = lookup({1: 0.003, 9: 0.0035, 32: 0.015, 64: 0.035, 80: 0.044})
    text = list(range(40)) * 6
    assert write(source, text, 80, running=64)[2] < 0.2 * len(text)
    assert write(source, text, 80, running=1, sequence=1)[1] < 60


def test_more_drafts_are_given_where_they_come_true_more_often():
    table = {1: 0.003, 5: 0.005, 9: 0.007}
    sure, unsure = lookup(table), lookup(table)
    write(sure, list(range(30)) * 20, 40)
    draw = random.Random(5)
    write(unsure, [token if draw.random() < 0.7 else 99 for token in list(range(30)) * 20], 40)
    text = list(range(30)) * 3
    assert len(sure.propose(9, text, 8, 1, 1)) > len(unsure.propose(9, text, 8, 1, 1))


def test_a_sequence_that_has_ended_is_forgotten():
    source = lookup()
    source.propose(0, [1, 2, 3] * 9, 8, 1, 1)
    source.forget(0)
    source.forget(0)
    assert not source._texts
