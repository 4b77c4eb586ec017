"""Preemption by recompute: who goes, what comes back, what is counted, and that everything gets on."""

import pytest

from octavo_engine.core.config import CacheGroup
from octavo_engine.core.stop import StopRule
from tests.core.drive import Drive, continuation


def test_the_youngest_goes_and_comes_back_with_all_its_tokens():
    drive = Drive(16, prefix_sharing=False)
    old, young = drive.submit(range(20), 30), drive.submit(range(100, 120), 30)
    while not drive.scheduler.snapshot(0.0).preemptions:
        drive.step()
    assert drive.running() == [old]
    written = drive.text(young)
    while young not in drive.running():
        drive.step()
    (admission,) = drive.plans[-1].admitted
    assert admission.tokens == (*range(100, 120), *written)
    assert admission.num_prompt_tokens == 20
    drive.finish()
    assert drive.text(old) == continuation(range(20), 30)
    assert drive.text(young) == continuation(range(100, 120), 30)


@pytest.mark.parametrize(
    ("priorities", "victims"),
    [((0, 0, 0), [2, 1]), ((1, 0, 0), [0, 2]), ((0, 5, 1), [1, 2]), ((-1, -1, -2), [1, 0])],
)
def test_the_victim_has_the_largest_priority_and_arrival(priorities, victims):
    drive = Drive(18, prefix_sharing=False)
    for number, priority in enumerate(priorities):
        drive.submit(range(number * 100, number * 100 + 17), 40, priority=priority)
    drive.step()
    gone: list[int] = []
    before = sorted(drive.running())
    while len(gone) < 2:
        drive.step()
        gone += [sequence for sequence in before if sequence not in drive.running() and sequence not in gone]
    assert gone == victims
    drive.finish()


def test_the_oldest_is_never_preempted_and_never_waits():
    drive = Drive(18, prefix_sharing=False)
    sequences = [drive.submit(range(n * 100, n * 100 + 9), 50) for n in range(6)]
    while len(drive.text(sequences[0])) < 50:
        assert drive.rows().get(sequences[0], 1) if drive.plans else True
        drive.step()
        assert sequences[0] in drive.rows()
    drive.finish(limit=5000)
    assert all(drive.text(s) == continuation(range(n * 100, n * 100 + 9), 50) for n, s in enumerate(sequences))


def test_nothing_is_admitted_in_a_step_that_preempted():
    drive = Drive(18, prefix_sharing=False)
    for number in range(4):
        drive.submit(range(number * 100, number * 100 + 13), 30)
    while drive.scheduler.has_work:
        before = drive.scheduler.snapshot(0.0).preemptions
        plan = drive.step()
        if drive.scheduler.snapshot(0.0).preemptions > before:
            assert plan.admitted == ()
    assert drive.scheduler.snapshot(0.0).preemptions > 0


def test_the_last_one_waits_for_blocks_rather_than_preempt_itself():
    drive = Drive(9, max_model_len=36, prefix_sharing=False)
    first, last = drive.submit(range(17), 4), drive.submit(range(100, 114), 12)
    for _ in range(4):
        drive.step()
    assert drive.rows() == {first: 1}
    drive.step()
    assert drive.rows() == {last: 1}
    drive.finish()
    assert drive.scheduler.snapshot(0.0).preemptions == 0
    assert drive.text(last) == continuation(range(100, 114), 12)


@pytest.mark.parametrize("drafts", [False, True])
def test_preempted_in_flight_the_token_owed_is_neither_lost_nor_told_twice(drafts):
    prompt = tuple(range(6))
    text = continuation(prompt, 12)
    propose = (lambda tokens: (*text[len(tokens) - 6 :][:2], 555)) if drafts else None
    drive = Drive(propose=propose)
    sequence = drive.submit(prompt, 12)
    drive.step()
    drive.plan()
    assert drive.scheduler.preempt(sequence)
    assert drive.plan() is None, "it waits for the token it is owed"
    assert drive.scheduler.snapshot(0.0).waiting == 1
    drive.commit()
    drive.finish(depth=2)
    assert drive.text(sequence) == text


def test_preempted_with_two_plans_in_flight():
    prompt = tuple(range(6))
    drive = Drive()
    sequence = drive.submit(prompt, 12)
    drive.plan()
    drive.plan()
    drive.scheduler.preempt(sequence)
    drive.commit()
    assert drive.plan() is None
    drive.commit()
    drive.finish(depth=2)
    assert drive.text(sequence) == continuation(prompt, 12)
    assert sum(event.started for event in drive.events) == 1


def test_a_token_that_arrives_while_preempted_may_end_the_sequence():
    prompt = tuple(range(6))
    text = continuation(prompt, 2)
    drive = Drive()
    sequence = drive.submit(prompt, stop=StopRule(9, stop_token_ids=(text[1],)))
    drive.step()
    drive.plan()
    drive.scheduler.preempt(sequence)
    drive.commit()
    assert drive.text(sequence) == text
    assert drive.end(sequence).finish == "stop"
    drive.scheduler.assert_idle()


def test_blocks_lost_in_flight_are_not_published_for_the_sequence_that_lost_them():
    drive = Drive()
    sequence = drive.submit(range(20), 3)
    drive.plan()
    drive.scheduler.preempt(sequence)
    drive.submit(range(100, 120), 3)
    drive.plan()
    drive.commit()
    assert drive.scheduler.snapshot(0.0).blocks_cached == 0
    drive.finish()
    assert drive.text(sequence) == continuation(range(20), 3)


def test_published_blocks_stay_so_that_resuming_recomputes_little():
    drive = Drive()
    sequence = drive.submit(range(22), 9)
    for _ in range(4):
        drive.step()
    drive.scheduler.preempt(sequence)
    drive.step()
    assert drive.rows() == {sequence: 25 + 1 - 24}
    now = drive.scheduler.snapshot(0.0)
    assert (now.preemptions, now.recomputed_tokens) == (1, 1)
    assert (now.prefix_hit_tokens, now.prefix_miss_tokens) == (0, 22), "recompute is not a prefix hit"
    drive.finish()


def test_recomputed_tokens_are_counted_as_they_are_computed_again():
    drive = Drive(prefix_sharing=False, max_num_batched_tokens=16)
    sequence = drive.submit(range(22), 9)
    for _ in range(4):
        drive.step()
    drive.scheduler.preempt(sequence)
    drive.step()
    assert drive.scheduler.snapshot(0.0).recomputed_tokens == 16
    drive.step()
    assert drive.scheduler.snapshot(0.0).recomputed_tokens == 24
    drive.finish()
    assert drive.scheduler.snapshot(0.0).recomputed_tokens == 24


def test_a_preempted_sequence_waits_with_all_it_has_to_compute():
    drive = Drive()
    sequence = drive.submit(range(10), 9)
    drive.step()
    drive.step()
    drive.scheduler.preempt(sequence)
    assert drive.scheduler.snapshot(5.0)[3:7] == (0, 1, 12, 5.0)


def test_a_preempted_sequence_that_shares_a_prefix_leaves_it_to_the_others():
    drive = Drive()
    first = drive.submit(range(20), 12, n=3)
    for _ in range(4):
        drive.step()
    drive.scheduler.preempt(first + 1)
    drive.finish()
    assert all(drive.text(first + choice) == continuation(range(20), 12) for choice in range(3))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("watermark", [0.0, 0.3])
@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize(
    "prompts",
    [
        # Crossing the wall while decoding, with small ones behind.
        [(30, 20), (3, 4), (3, 4), (3, 4)],
        # Two that need 60 % of the pool each.
        [(20, 20), (20, 20), (3, 4)],
        # Everybody needs everything.
        [(10, 50)] * 5,
        [(1, 60)] * 8,
    ],
)
def test_progress_on_a_pool_of_one_longest_sequence(depth, watermark, sharing, prompts):
    """Every step computes something, everybody ends, and no one is preempted again and again without getting on."""
    drive = Drive(16, watermark=watermark, prefix_sharing=sharing, max_plans_in_flight=depth, max_num_batched_tokens=24)
    sequences = [drive.submit(range(n * 100, n * 100 + size), count) for n, (size, count) in enumerate(prompts)]
    total = sum(size + count for size, count in prompts)
    drive.finish(depth, limit=4 * total)
    for number, (sequence, (size, count)) in enumerate(zip(sequences, prompts, strict=True)):
        assert drive.text(sequence) == continuation(range(number * 100, number * 100 + size), count)
    now = drive.scheduler.snapshot(0.0)
    assert now.preemptions <= total // 4
    assert now.recomputed_tokens <= 3 * total


@pytest.mark.parametrize("depth", [1, 2])
def test_progress_with_a_window_group_of_the_least_size(depth):
    drive = Drive(
        groups=(CacheGroup(32), CacheGroup(6, 8)),
        max_num_batched_tokens=8,
        max_num_seqs=4,
        max_plans_in_flight=depth,
    )
    sequences = [drive.submit(range(n * 100, n * 100 + 20), 20) for n in range(4)]
    drive.finish(depth, limit=2000)
    assert all(drive.text(s) == continuation(range(n * 100, n * 100 + 20), 20) for n, s in enumerate(sequences))
