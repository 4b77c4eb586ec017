"""The runner over every backend: same tokens whatever the chunks, the company, the blocks, the drafts."""

import numpy as np
import pytest

from octavo_engine.core.step import BlockAppend, BlockCopy, Row, RowResult
from octavo_engine.sampling.sampler import NOT_FINITE
from octavo_engine.worker.failures import StepError
from octavo_engine.worker.runner import SCORED_AT_ONCE
from tests.worker.backends import BACKENDS, Faulty
from tests.worker.driver import Driver

SAMPLED = {"seed": 11, "temperature": 3.0, "frequency_penalty": 0.3, "repetition_penalty": 1.1, "top_p": 0.98}
GREEDY = {"temperature": 0.0}
LENGTH = 12


@pytest.fixture(params=sorted(BACKENDS))
def make(request):
    return BACKENDS[request.param]


@pytest.fixture
def driver(make):
    return Driver(make())


def prompt_of(seed, length=40, vocab=256):
    return np.random.default_rng(seed).integers(0, vocab, length).tolist()


def alone(make, prompt, count=LENGTH, **settings):
    """The text of a request that has the machine to itself."""
    driver = Driver(make())
    return driver.generate(driver.live(prompt, **(settings or SAMPLED)), count)


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED])
@pytest.mark.parametrize("chunk", [1, 5, 16, 17, 39])
def test_chunked_prefill_writes_the_text_of_a_whole_one(make, driver, chunk, settings):
    text = driver.generate(driver.live(prompt_of(1), **settings), LENGTH, chunk=chunk)
    assert text == alone(make, prompt_of(1), **settings)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32])
def test_prompts_at_the_edges_of_a_block(make, driver, length):
    text = driver.generate(driver.live(prompt_of(2, length), slot=3, first_block=24, **SAMPLED), LENGTH, chunk=7)
    assert text == alone(make, prompt_of(2, length))


def test_texts_differ_between_prompts_seeds_and_choices(make):
    texts = [
        alone(make, prompt_of(1), temperature=3.0, seed=1),
        alone(make, prompt_of(2), temperature=3.0, seed=1),
        alone(make, prompt_of(1), temperature=3.0, seed=2),
        alone(make, prompt_of(1), temperature=3.0, seed=1, choice=1),
    ]
    assert len({tuple(text) for text in texts}) == 4


def test_neighbours_do_not_change_a_text(make, driver):
    lives = [driver.live(prompt_of(i, 9 + 8 * i), slot=7 - i, first_block=8 * i, **SAMPLED) for i in range(5)]
    running, admitted = [], []
    for round_number in range(40):
        if round_number % 3 == 0 and len(running) < len(lives):
            live = lives[len(running)]
            running.append(live)
            admitted = [driver.admission(live)]
        going = [live for live in running if len(live.text) < LENGTH]
        order = going if round_number % 2 else going[::-1]
        driver.step([(live, driver.row(live, 6 + live.slot)) for live in order], admitted=admitted)
        admitted = []
    for index, live in enumerate(lives):
        assert live.text == alone(make, prompt_of(index, 9 + 8 * index))


def test_preemption_and_resumption_elsewhere_do_not_change_a_text(make, driver):
    live = driver.live(prompt_of(3), slot=0, min_tokens=9, held_back_ids=(1, 2, 3), **SAMPLED)
    driver.generate(live, 5)
    other = driver.live(prompt_of(4), slot=0, first_block=0, **SAMPLED)
    driver.step([(other, driver.row(other))], released=[0], admitted=[driver.admission(other)])
    live.slot, live.blocks, live.computed = 2, [block + 20 for block in range(8)][::-1], 0
    driver.generate(live, LENGTH - 5, chunk=11)
    assert live.text == alone(make, prompt_of(3), min_tokens=9, held_back_ids=(1, 2, 3), **SAMPLED)


def test_a_prefix_hit_does_not_change_a_text(make, driver):
    prefix = prompt_of(5, 32)
    first = driver.live(prefix + prompt_of(6, 5), slot=0, **SAMPLED)
    driver.generate(first, 3)
    second = driver.live(prefix + prompt_of(7, 5), slot=1, first_block=16, **SAMPLED)
    second.blocks[:2], second.computed = first.blocks[:2], 32
    driver.generate(second, LENGTH)
    assert second.text == alone(make, prefix + prompt_of(7, 5))
    driver.generate(first, LENGTH - 3, admit=False)
    assert first.text == alone(make, prefix + prompt_of(6, 5))


def test_copied_blocks_serve_as_their_source(make, driver):
    prefix = prompt_of(5, 32)
    first = driver.live([*prefix, 1], slot=0, **SAMPLED)
    driver.generate(first, 1)
    second = driver.live(prefix + prompt_of(7, 5), slot=1, first_block=16, **SAMPLED)
    second.computed = 32
    copies = [BlockCopy(group, first.blocks[index], 16 + index) for group in driver.groups for index in range(2)]
    driver.step([(second, driver.row(second))], admitted=[driver.admission(second)], copies=copies)
    driver.generate(second, LENGTH - 1, admit=False)
    assert second.text == alone(make, prefix + prompt_of(7, 5))


def test_a_wrong_block_changes_the_text(make, driver):
    """Or the tests above would prove nothing."""
    live = driver.live(prompt_of(1), **SAMPLED)
    driver.generate(live, 2)
    driver.runner.batch.tables[0][live.slot, :2] = [50, 51]
    driver.generate(live, LENGTH - 2, admit=False)
    assert live.text != alone(make, prompt_of(1))


def test_blocks_appended_when_they_are_needed(make, driver):
    live = driver.live(prompt_of(8, 14), first_block=30, **SAMPLED)
    driver.step([(live, driver.row(live))], admitted=[driver.admission(live, live.blocks[:1])])
    for _ in range(LENGTH - 1):
        block, offset = divmod(live.computed, driver.size)
        blocks = (live.blocks[block],)
        appended = [] if offset else [BlockAppend(live.slot, group, block, blocks) for group in driver.groups]
        driver.step([(live, driver.row(live))], appended=appended)
    assert live.text == alone(make, prompt_of(8, 14))


def test_a_sampled_token_is_known_to_the_plan_already_in_flight(make, driver):
    live = driver.live(prompt_of(9), **SAMPLED)
    first = driver.plan([driver.row(live)], admitted=[driver.admission(live)])
    plans = [first, *(driver.plan([Row(0, live.sequence, 40 + i, 1, True)]) for i in range(LENGTH - 1))]
    tokens = [driver.runner.execute(plan).rows[0].tokens[0] for plan in plans]
    assert tokens == alone(make, prompt_of(9))


# --- prompt log-probabilities -----------------------------------------------------------------------------------
def scores_of(driver, live, chunk=None):
    live.scores = True
    driver.generate(live, 1, chunk=chunk)
    return live.prompt_logprobs


@pytest.mark.parametrize("chunk", [1, 5, 16, 33, 69])
def test_prompt_logprobs_do_not_depend_on_chunks_or_company(make, driver, chunk):
    whole = Driver(make())
    expected = scores_of(whole, whole.live(prompt_of(1, 70), **SAMPLED))
    assert len(expected) == 69
    other = driver.live(prompt_of(2), slot=5, first_block=40, **SAMPLED)
    driver.generate(other, 2)
    live = driver.live(prompt_of(1, 70), slot=2, first_block=8, **SAMPLED)
    live.scores, admitted = True, [driver.admission(live)]
    while not live.text:
        pairs = [(live, driver.row(live, chunk)), *([(other, driver.row(other))] if len(other.text) < LENGTH else [])]
        driver.step(pairs, admitted=admitted)
        admitted = []
    assert live.prompt_logprobs == expected


def test_prompt_logprobs_are_those_of_the_softmax(make):
    """Each is what the same tokens' logits say when they are asked for one position at a time."""
    driver, prompt = Driver(make()), prompt_of(3, 12)
    live = driver.live(prompt)
    seen, logits = [], driver.executable.logits
    driver.executable.logits = lambda *arguments: seen.append(np.array(logits(*arguments))) or seen[-1]
    for position in range(1, len(prompt)):
        row = Row(0, live.sequence, position - 1, 1, False, scored=(position, position + 1))
        driver.runner.execute(driver.plan([row], admitted=[driver.admission(live)] if position == 1 else ()))
    exact = [row[0].astype(np.float64) for row in seen]
    expected = [row[token] - np.log(np.exp(row).sum()) for row, token in zip(exact, prompt[1:], strict=True)]
    fresh = Driver(make())
    np.testing.assert_allclose(scores_of(fresh, fresh.live(prompt)), expected, rtol=1e-5, atol=1e-5)


def test_logits_of_a_scored_prompt_exist_a_slice_at_a_time(make, driver):
    sizes, logits = [], driver.executable.logits
    driver.executable.logits = lambda *arguments: sizes.append(len(result := logits(*arguments))) or result
    live = driver.live(prompt_of(1, 100))
    assert len(scores_of(driver, live)) == 99
    assert sum(sizes) == 100
    assert max(sizes) <= SCORED_AT_ONCE


def test_a_scored_position_that_is_not_finite_fails_its_row_alone(make):
    driver = Driver(Faulty(make()))
    live, other = (driver.live(prompt_of(i), slot=i, first_block=8 * i) for i in range(2))
    live.scores = True
    driver.executable.poison = [0]
    row = driver.row(live, 9)
    driver.step(
        [(live, row), (other, driver.row(other, 9))], admitted=[driver.admission(live), driver.admission(other)]
    )
    assert (live.failed, other.failed) == (NOT_FINITE, "")


# --- static batching --------------------------------------------------------------------------------------------
def test_padding_is_computed_and_changes_nothing(make, driver):
    short, long = (driver.live(prompt_of(i, n), slot=i, first_block=8 * i, **SAMPLED) for i, n in ((1, 9), (2, 30)))
    admitted = [driver.admission(short), driver.admission(long)]
    driver.step([(short, driver.row(short, padding=21)), (long, driver.row(long))], admitted=admitted)
    for _ in range(LENGTH - 1):
        driver.step([(short, driver.row(short)), (long, driver.row(long))])
    assert short.text == alone(make, prompt_of(1, 9))
    assert long.text == alone(make, prompt_of(2, 30))


def test_what_a_finished_row_computes_is_thrown_away(make, driver):
    done, live = (driver.live(prompt_of(i), slot=i, first_block=8 * i, **SAMPLED) for i in (1, 2))
    driver.step(
        [(done, driver.row(done)), (live, driver.row(live))], admitted=[driver.admission(done), driver.admission(live)]
    )
    last = len(done.tokens) - 1
    for step in range(LENGTH - 1):
        discarded = Row(done.slot, done.sequence, last, 1, bool(step % 2), discard=True)  # its last position again
        result = driver.step([(done, discarded), (live, driver.row(live))])
        assert result.rows[0] == RowResult()
    assert live.text == alone(make, prompt_of(2))


# --- drafts -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("settings", [GREEDY, SAMPLED])
@pytest.mark.parametrize("wrong_at", [0, 1, 3, None])
def test_drafts_save_steps_and_change_nothing(make, driver, wrong_at, settings):
    text = alone(make, prompt_of(10), **settings)
    live = driver.live(prompt_of(10), **settings)
    driver.generate(live, 1)
    steps = 0
    while len(live.text) < LENGTH:
        drafts = text[len(live.text) : LENGTH - 1][:4]
        if wrong_at is not None and wrong_at < len(drafts):
            drafts[wrong_at] = (drafts[wrong_at] + 1) % driver.executable.vocab_size
        driver.step([(live, driver.row(live, drafts=drafts))])
        steps += 1
    assert live.text == text
    assert (steps < LENGTH - 1) == (wrong_at != 0)


def test_a_row_planned_on_drafts_that_were_rejected_is_void(make, driver):
    text = alone(make, prompt_of(10))
    live = driver.live(prompt_of(10), **SAMPLED)
    driver.generate(live, 1)
    drafts = [text[1], (text[2] + 1) % driver.executable.vocab_size]
    start = live.computed
    result = driver.step([(live, driver.row(live, drafts=drafts))])
    assert len(result.rows[0].tokens) == 2
    overtaken = driver.plan([Row(live.slot, live.sequence, start + 3, 1, True)])
    assert driver.runner.execute(overtaken).rows[0] == RowResult()
    driver.generate(live, LENGTH - 3, admit=False)
    assert live.text == text


# --- failures ---------------------------------------------------------------------------------------------------
def test_a_row_that_is_not_finite_fails_alone(make):
    driver = Driver(Faulty(make()))
    lives = [driver.live(prompt_of(i), slot=i, first_block=8 * i, **SAMPLED) for i in range(3)]
    driver.step([(x, driver.row(x)) for x in lives], admitted=[driver.admission(x) for x in lives])
    driver.executable.poison = [1]
    driver.step([(x, driver.row(x)) for x in lives])
    driver.executable.poison = []
    in_flight = driver.plan([Row(1, lives[1].sequence, 42, 1, True)])
    assert driver.runner.execute(in_flight).rows[0] == RowResult()
    for live in (lives[0], lives[2]):
        driver.generate(live, LENGTH - 2, admit=False)
        assert live.text == alone(make, prompt_of(lives.index(live)))
    assert [live.failed for live in lives] == ["", NOT_FINITE, ""]


def test_a_step_that_raises_names_its_rows_and_the_others_go_on(make):
    driver = Driver(Faulty(make()))
    lives = [driver.live(prompt_of(i), slot=i, first_block=8 * i, **SAMPLED) for i in range(2)]
    driver.generate(lives[0], 2)
    driver.executable.error = ZeroDivisionError("a kernel's mistake")
    with pytest.raises(StepError, match=rf"sequence {lives[1].sequence} at 0\+40 in slot 1") as raised:
        driver.step([(lives[1], driver.row(lives[1]))], admitted=[driver.admission(lives[1])])
    assert raised.value.sequences == (lives[1].sequence,)
    driver.executable.error = None
    driver.generate(lives[0], LENGTH - 2, admit=False)
    assert lives[0].text == alone(make, prompt_of(0))
    fresh = driver.live(prompt_of(1), slot=1, first_block=8, **SAMPLED)
    driver.step([(fresh, driver.row(fresh))], released=[1], admitted=[driver.admission(fresh)])
    driver.generate(fresh, LENGTH - 1, admit=False)
    assert fresh.text == alone(make, prompt_of(1))


def test_the_probe_computes_without_a_trace_and_tells_a_broken_backend(make):
    driver = Driver(Faulty(make()))
    driver.runner.probe()
    live = driver.live(prompt_of(1), **SAMPLED)
    driver.generate(live, 3)
    driver.runner.probe()
    driver.generate(live, LENGTH - 3, admit=False)
    assert live.text == alone(make, prompt_of(1))
    driver.executable.error = ZeroDivisionError("a kernel's mistake")
    with pytest.raises(ZeroDivisionError):
        driver.runner.probe()


def test_what_breaks_the_contract_is_not_taken_for_a_failed_step(driver):
    live = driver.live(prompt_of(1))
    with pytest.raises(RuntimeError, match="before it was registered"):
        driver.runner.execute(driver.plan(admitted=[driver.admission(live)._replace(sequence=99)]))
    driver.runner.execute(driver.plan(admitted=[driver.admission(live)]))
    with pytest.raises(RuntimeError, match="still belongs to sequence"):
        driver.runner.execute(driver.plan(admitted=[driver.admission(live)]))
    with pytest.raises(RuntimeError, match="does not hold sequence"):
        driver.runner.execute(driver.plan([driver.row(live)._replace(slot=1)]))
