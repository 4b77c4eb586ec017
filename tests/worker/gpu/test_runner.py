"""The GPU's runner gives the tokens of the CPU's from the same plans, whatever the chunks, the company, the blocks."""

from __future__ import annotations

import pytest

from octavo_engine.core.step import BlockAppend, BlockCopy, Row, RowResult
from tests.worker.driver import Driver
from tests.worker.gpu.both import GREEDY, SAMPLED, cpu, gpu, prompt_of, require_same

LENGTH = 4


def alone(prompt, count=LENGTH, **settings):
    """What the CPU's runner writes for a request that has the machine to itself."""
    driver = Driver(cpu())
    return driver.generate(driver.live(prompt, **(settings or SAMPLED)), count)


@pytest.mark.parametrize(("chunk", "settings"), [(13, SAMPLED), (16, GREEDY), (39, SAMPLED)])
def test_chunked_prefill_writes_the_text_of_a_whole_one(chunk, settings):
    driver = Driver(gpu())
    text = driver.generate(driver.live(prompt_of(1), **settings), 3, chunk=chunk)
    assert text == alone(prompt_of(1), 3, **settings)


def test_a_prompt_in_chunks_of_one_token():
    driver = Driver(gpu())
    assert driver.generate(driver.live(prompt_of(2, 6), **SAMPLED), 2, chunk=1) == alone(prompt_of(2, 6), 2)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32])
def test_prompts_at_the_edges_of_a_block(length):
    driver = Driver(gpu())
    live = driver.live(prompt_of(2, length), slot=3, first_block=24, **SAMPLED)
    assert driver.generate(live, 2) == alone(prompt_of(2, length), 2)


def test_the_longest_sequence_that_fits():
    driver = Driver(gpu())
    live = driver.live(prompt_of(2, 126), **SAMPLED)
    assert driver.generate(live, 3, chunk=64) == alone(prompt_of(2, 126), 3)
    assert len(live.tokens) == 129


@pytest.mark.parametrize("invariant", [False, True])
def test_neighbours_do_not_change_a_text(invariant):
    driver = Driver(gpu(), invariant=invariant)
    ways = [SAMPLED, GREEDY, {"temperature": 2.0, "min_p": 0.02, "seed": 3}, {"temperature": 2.0, "top_k": 9}]
    lives = [driver.live(prompt_of(i, 9 + 8 * i), slot=7 - i, first_block=8 * i, **way) for i, way in enumerate(ways)]
    running = []
    while not all(len(live.text) == LENGTH for live in lives):
        admitted = [lives[len(running)]] if len(running) < len(lives) else []
        running += admitted
        going = [live for live in running if len(live.text) < LENGTH]
        order = going if len(running) % 2 else going[::-1]
        pairs = [(live, driver.row(live, 12 + live.slot)) for live in order]
        driver.step(pairs, admitted=[driver.admission(live) for live in admitted])
    for index, live in enumerate(lives):
        assert live.text == alone(prompt_of(index, 9 + 8 * index), **ways[index])


def test_preemption_and_resumption_elsewhere_do_not_change_a_text():
    """Counts of tokens, and ids that must not come yet, are those of the sequence wherever it is."""
    driver, limits = Driver(gpu()), {"min_tokens": 5, "held_back_ids": (1, 2, 3)} | SAMPLED
    live = driver.live(prompt_of(3), slot=0, **limits)
    driver.generate(live, 3)
    other = driver.live(prompt_of(4), slot=0, **SAMPLED)
    driver.step([(other, driver.row(other))], released=[0], admitted=[driver.admission(other)])
    live.slot, live.blocks, live.computed = 2, [block + 20 for block in range(8)][::-1], 0
    driver.generate(live, 3, chunk=30)
    assert live.text == alone(prompt_of(3), 6, **limits)
    driver.generate(other, 2, admit=False)
    assert other.text == alone(prompt_of(4), 3)


def test_a_slot_s_next_sequence_has_nothing_of_the_one_before():
    """No counts, no allowed ids, no tokens: though both plans are in flight."""
    driver = Driver(gpu())
    first = driver.live(prompt_of(3), allowed_token_ids=range(7), **SAMPLED)
    one = driver.plan([driver.row(first)], admitted=[driver.admission(first)])
    second = driver.live(prompt_of(4, 20), first_block=8, **SAMPLED)
    other = driver.plan([driver.row(second)], released=[0], admitted=[driver.admission(second)])
    launched = [driver.runner.launch(plan) for plan in (one, other)]
    assert launched[0].result().rows[0].tokens[0] in range(7)
    driver.take(other, [(second, other.rows[0])], launched[1].result())
    driver.generate(second, LENGTH - 1, admit=False)
    assert second.text == alone(prompt_of(4, 20))
    plain = driver.live(prompt_of(4, 20), first_block=16, **GREEDY)
    driver.step([(plain, driver.row(plain))], released=[0], admitted=[driver.admission(plain)])
    assert plain.text == alone(prompt_of(4, 20), 1, **GREEDY)


def test_a_prefix_hit_and_copied_blocks_serve_as_what_was_computed():
    driver, prefix = Driver(gpu()), prompt_of(5, 32)
    first = driver.live(prefix + prompt_of(6, 5), slot=0, **SAMPLED)
    driver.generate(first, 1)
    hit = driver.live(prefix + prompt_of(7, 5), slot=1, first_block=16, **SAMPLED)
    hit.blocks[:2], hit.computed = first.blocks[:2], 32
    copied = driver.live(prefix + prompt_of(8, 5), slot=2, first_block=24, **SAMPLED)
    copied.computed = 32
    copies = [BlockCopy(group, first.blocks[index], 24 + index) for group in driver.groups for index in range(2)]
    lives = (first, hit, copied)
    for step in range(LENGTH - 1):
        deltas = {"admitted": [driver.admission(hit), driver.admission(copied)], "copies": copies} if not step else {}
        driver.step([(live, driver.row(live)) for live in lives], **deltas)
    for live, (seed, count) in zip(lives, ((6, LENGTH), (7, LENGTH - 1), (8, LENGTH - 1)), strict=True):
        assert live.text == alone(prefix + prompt_of(seed, 5), count)


def test_blocks_appended_when_they_are_needed():
    driver = Driver(gpu())
    live = driver.live(prompt_of(8, 14), first_block=30, **SAMPLED)
    driver.step([(live, driver.row(live))], admitted=[driver.admission(live, live.blocks[:1])])
    for _ in range(LENGTH - 1):
        block, offset = divmod(live.computed, driver.size)
        appended = [] if offset else [BlockAppend(live.slot, group, block, (53,)) for group in driver.groups]
        driver.step([(live, driver.row(live))], appended=appended)
    assert live.text == alone(prompt_of(8, 14))


# --- plans in flight --------------------------------------------------------------------------------------------
def test_a_sampled_token_is_known_to_the_plans_already_in_flight():
    driver = Driver(gpu())
    live = driver.live(prompt_of(9), **SAMPLED)
    first = driver.plan([driver.row(live)], admitted=[driver.admission(live)])
    plans = [first, *(driver.plan([Row(0, live.sequence, 40 + i, 1, True)]) for i in range(LENGTH - 1))]
    launched = [driver.runner.launch(plan) for plan in plans]
    assert [each.result().rows[0].tokens[0] for each in launched] == alone(prompt_of(9))


def test_a_row_that_does_not_start_where_the_known_tokens_end_is_void():
    def scenario(driver):
        live = driver.live(prompt_of(9, 20), **SAMPLED)
        other = driver.live(prompt_of(8, 20), slot=1, first_block=8, **SAMPLED)
        lives = (live, other)
        driver.step([(x, driver.row(x)) for x in lives], admitted=[driver.admission(x) for x in lives])
        beyond = Row(0, live.sequence, 21, 1, True)
        reading = Row(0, live.sequence, 21, 1, False)
        told = []
        for void in (beyond, reading):
            plan = driver.plan([void, driver.row(other)])
            result = driver.runner.execute(plan)
            told.append(result.rows[0])
            driver.take(plan, [(other, plan.rows[1])], result._replace(rows=result.rows[1:]))
        driver.generate(live, 2, admit=False)
        return told, live.text, other.text

    told, *_ = require_same(scenario)
    assert told == [RowResult()] * 2


# --- static batching --------------------------------------------------------------------------------------------
def test_padding_is_computed_and_changes_nothing():
    driver = Driver(gpu())
    short, long = (driver.live(prompt_of(i, n), slot=i, first_block=8 * i, **SAMPLED) for i, n in ((1, 9), (2, 30)))
    admitted = [driver.admission(short), driver.admission(long)]
    driver.step([(short, driver.row(short, padding=21)), (long, driver.row(long))], admitted=admitted)
    driver.step([(short, driver.row(short)), (long, driver.row(long))])
    assert short.text == alone(prompt_of(1, 9), 2)
    assert long.text == alone(prompt_of(2, 30), 2)


def test_padding_beyond_the_tokens_of_a_step_is_left_out():
    driver = Driver(gpu())
    live = driver.live(prompt_of(1, 9), **SAMPLED)
    row = driver.row(live, padding=gpu().max_tokens)
    driver.step([(live, row)], admitted=[driver.admission(live)])
    assert live.text == alone(prompt_of(1, 9), 1)


def test_what_an_ended_row_computes_is_thrown_away():
    """Though nobody knows its parameters any more: a batch keeps its rows until all of them have ended."""
    driver = Driver(gpu())
    done, live = (driver.live(prompt_of(i), slot=i, first_block=8 * i, **SAMPLED) for i in (1, 2))
    admitted = [driver.admission(done), driver.admission(live)]
    driver.step([(done, driver.row(done)), (live, driver.row(live, 20))], admitted=admitted)
    driver.step([(live, driver.row(live))])
    driver.runner.forget(done.sequence)
    last = len(done.tokens) - 1
    for step in range(LENGTH - 1):
        discarded = Row(done.slot, done.sequence, last, 1, bool(step % 2), discard=True)  # its last position again
        result = driver.step([(done, discarded), (live, driver.row(live))])
        assert result.rows[0] == RowResult()
    assert live.text == alone(prompt_of(2))
