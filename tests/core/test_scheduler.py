"""Continuous batching without a model: order, budget, two plans in flight, drafts, aborts, failures, numbers."""

import msgspec
import pytest

from octavo_engine.core.config import CoreSnapshot, Event
from octavo_engine.core.step import RowResult, StepPlan, StepResult
from octavo_engine.core.stop import StopRule
from tests.core.drive import Drive, continuation


def test_nothing_to_do_is_none():
    assert Drive().scheduler.schedule() is None


def test_a_finished_sequence_leaves_at_once_and_a_waiting_one_takes_its_place():
    drive = Drive(max_num_seqs=2)
    short, long, waiting = drive.submit(range(3), 2), drive.submit(range(5, 8), 9), drive.submit(range(9, 12), 2)
    drive.step()
    drive.step()
    assert drive.running() == [long]
    drive.step()
    assert drive.rows() == {long: 1, waiting: 3}
    assert drive.plans[-1].released == (0,)
    assert drive.end(short).finish == "length"
    drive.finish()


def test_running_sequences_come_first_and_the_rest_of_the_budget_is_a_prompt_chunk():
    drive = Drive(max_num_batched_tokens=16)
    first = drive.submit(range(4), 9)
    drive.step()
    long = drive.submit(range(10, 50), 2)
    drive.step()
    assert drive.rows() == {first: 1, long: 15}
    drive.step()
    drive.step()
    assert drive.rows() == {first: 1, long: 10}
    drive.finish()
    assert drive.text(long) == continuation(range(10, 50), 2)


def test_only_the_last_chunk_of_a_prompt_samples():
    drive = Drive(max_num_batched_tokens=16)
    drive.submit(range(40), 2)
    assert [drive.step().rows[0].samples for _ in range(3)] == [False, False, True]


def test_an_older_prompt_never_takes_the_token_of_a_younger_decode():
    """A sequence resumed at the front of the running list leaves every later one its step."""
    drive = Drive(max_num_batched_tokens=8, prefix_sharing=False)
    old, young = drive.submit(range(5), 30), drive.submit(range(10, 13), 30)
    for _ in range(12):
        drive.step()
    drive.scheduler.preempt(old)
    drive.step()
    assert drive.rows() == {young: 1, old: 7}
    drive.step()
    assert drive.rows()[young] == 1


def test_budget_and_slots_are_never_exceeded():
    drive = Drive(200, max_num_batched_tokens=16, max_num_seqs=5)
    for start in range(20):
        drive.submit(range(start, start + 3 + start), 3 + start % 5)
    drive.finish(limit=10_000)
    assert all(plan.num_tokens <= 16 and len(plan.rows) <= 5 for plan in drive.plans)


def test_a_long_head_is_not_skipped_for_a_short_one():
    drive = Drive(16)
    drive.submit(range(30), 30)
    drive.step()
    drive.submit(range(100, 150), 4)
    drive.submit(range(200, 203), 4)
    drive.step()
    assert drive.running() == [0]
    drive.finish()


@pytest.mark.parametrize("allocation", ["paged", "contiguous"])
def test_two_plans_in_flight_say_the_same_as_one(allocation):
    texts = []
    for depth in (1, 2):
        drive = Drive(max_plans_in_flight=depth, kv_allocation=allocation)
        sequences = [drive.submit(range(start, start + 7), 3 + start) for start in range(6)]
        drive.finish(depth)
        texts.append([drive.text(sequence) for sequence in sequences])
        assert [len(text) for text in texts[-1]] == [3 + start for start in range(6)]
    assert texts[0] == texts[1]


def test_with_two_plans_in_flight_a_token_is_planned_before_it_is_known():
    drive = Drive()
    drive.submit(range(6), 4)
    drive.plan()
    plan = drive.plan()
    assert plan is not None
    assert (plan.rows[0].start, plan.rows[0].num_tokens, plan.rows[0].samples) == (6, 1, True)
    drive.finish(depth=2)


def test_a_third_plan_in_flight_is_refused():
    drive = Drive()
    drive.submit(range(6), 4)
    drive.plan()
    drive.plan()
    with pytest.raises(RuntimeError, match="2 plans are in flight"):
        drive.plan()


def test_plans_are_committed_in_order_and_once():
    drive = Drive()
    drive.submit(range(6), 4)
    first, second = drive.plan(), drive.plan()
    assert first is not None
    assert second is not None
    with pytest.raises(ValueError, match="not the oldest"):
        drive.scheduler.commit(second, drive.in_flight[1][1])
    with pytest.raises(ValueError, match="does not answer"):
        drive.scheduler.commit(first, drive.in_flight[1][1])
    drive.commit()
    with pytest.raises(ValueError, match="not the oldest"):
        drive.scheduler.commit(first, StepResult(first.number, (RowResult((1,)),)))


def test_a_step_beyond_a_stop_is_void():
    prompt = tuple(range(6))
    drive = Drive()
    sequence = drive.submit(prompt, stop=StopRule(9, stop_token_ids=(continuation(prompt, 1)[0],)))
    drive.plan()
    drive.plan()
    drive.commit()
    assert drive.end(sequence).finish == "stop"
    assert drive.commit() == []
    drive.scheduler.assert_idle()


def test_a_plan_is_made_of_ints_and_tuples_only():
    """It travels to ranks in other processes."""
    drive = Drive(windows=(0, 8), propose=lambda tokens: [1])
    drive.submit(range(9), 6)
    for _ in range(3):
        drive.step()
    plan = drive.plans[-1]
    assert plan.rows[0].drafts == (1,)
    assert msgspec.convert(msgspec.msgpack.decode(msgspec.msgpack.encode(plan)), StepPlan) == plan
    assert hash(plan) == hash(StepPlan(*plan))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_accepted_drafts_are_told_with_the_token_after_them_and_rejected_ones_are_taken_back(depth, right):
    prompt = tuple(range(6))
    text = continuation(prompt, 20)

    def propose(tokens):
        written = len(tokens) - len(prompt)
        return (*text[written : written + right], *[555] * (3 - right))

    drive = Drive(max_plans_in_flight=depth, propose=propose)
    sequence = drive.submit(prompt, 20)
    drive.finish(depth)
    assert drive.text(sequence) == text
    longest = max(len(event.tokens) for event in drive.events)
    assert longest == right + 1


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_are_guessed_only_once_every_token_before_them_is_known(depth):
    asked = []

    def propose(tokens):
        asked.append(len(tokens))
        return [1]

    drive = Drive(max_plans_in_flight=depth, propose=propose)
    drive.submit(range(6), 9)
    drive.finish(depth)
    drafted = [row.start + 1 for plan in drive.plans for row in plan.rows if row.drafts]
    assert set(drafted) <= set(asked)
    assert len(drafted) > 3


def test_with_two_plans_in_flight_a_sequence_without_a_guess_does_not_wait_for_its_token():
    drive = Drive(propose=lambda tokens: [])
    drive.submit(range(6), 9)
    drive.plan()
    assert drive.plan() is not None
    drive.finish(depth=2)


def test_a_draft_source_learns_of_steps_that_only_decode_and_of_ends():
    drive = Drive(propose=lambda tokens: [1, 2])
    drive.submit(range(6), 3)
    drive.submit(range(10, 16), 8)
    for seconds in (1.0, 2.0):
        drive.scheduler.measured(drive.step(), seconds)
    source = drive.scheduler._source
    assert source.measurements == [(12, 0, 0.0), (5, 3, 2.0)]
    drive.finish()
    assert source.forgotten == [0, 1]


def test_drafts_stay_within_budget_context_and_memory():
    drive = Drive(17, propose=lambda tokens: [1] * 50, max_drafts=50, max_num_batched_tokens=8, max_num_seqs=4)
    for start in range(3):
        drive.submit(range(start * 10, start * 10 + 5), 60)
    drive.finish(limit=10_000)
    assert all(plan.num_tokens <= 8 for plan in drive.plans)
    assert all(row.start + row.num_tokens <= 64 for plan in drive.plans for row in plan.rows)


def test_drafts_preempt_nobody():
    drive = Drive(16, propose=lambda tokens: [1] * 8)
    drive.submit(range(28), 4)
    drive.submit(range(100, 128), 4)
    drive.finish()
    assert drive.scheduler.snapshot(0.0).preemptions == 0


def test_started_is_told_once_with_the_cached_tokens():
    drive = Drive(max_num_batched_tokens=16)
    drive.submit(range(33), 1)
    drive.finish()
    drive.events.clear()
    sequence = drive.submit((*range(33), *range(50, 80)), 1)
    drive.finish()
    assert drive.events[0] == Event(sequence, started=True, cached_tokens=32)
    assert [event.started for event in drive.events] == [True, False]


def test_a_hit_leaves_one_token_to_compute():
    drive = Drive()
    drive.submit(range(16), 1)
    drive.finish()
    again = drive.submit(range(16), 1)
    drive.step()
    assert drive.rows() == {again: 4}, "whole blocks only: the last one is computed again"


def test_what_a_sequence_wrote_is_a_prefix_of_the_next_turn():
    drive = Drive()
    first = drive.submit(range(10), 10)
    drive.finish()
    turn = (*range(10), *drive.text(first), 1, 2, 3)
    drive.submit(turn, 1)
    drive.finish()
    assert drive.events[-1].cached_tokens == 16


def test_hits_and_misses_add_up_to_the_prompts():
    drive = Drive()
    prompts = [list(range(n)) for n in (5, 12, 12, 30, 31, 7)]
    for prompt in prompts:
        drive.submit(prompt, 2)
    drive.finish()
    now = drive.scheduler.snapshot(0.0)
    assert now.prefix_hit_tokens + now.prefix_miss_tokens == sum(map(len, prompts))
    assert now.prefix_hit_tokens > 0


def test_choices_are_sequences_of_their_own():
    drive = Drive()
    first = drive.submit(range(9), 3, n=3)
    assert drive.scheduler.snapshot(0.0).waiting == 3
    drive.finish()
    assert [len(drive.text(first + choice)) for choice in range(3)] == [3, 3, 3]


def test_the_snapshot_tells_the_queue_and_the_blocks():
    drive = Drive(16, max_num_seqs=1)
    drive.submit(range(9), 3)
    drive.submit(range(20, 25), 3)
    drive.submit(range(30, 32), 3, priority=-1)
    drive.step()
    assert drive.scheduler.snapshot(7.0) == CoreSnapshot(
        blocks_active=1,
        blocks_cached=0,
        blocks_free=15,
        running=1,
        waiting=2,
        waiting_tokens=14,
        oldest_wait_seconds=7.0,
        prefix_hit_tokens=0,
        prefix_miss_tokens=2,
        preemptions=0,
        recomputed_tokens=0,
        drafted_tokens=0,
        accepted_tokens=0,
        static_batches=0,
        reserved_slots=0,
    )
    drive.finish()
    now = drive.scheduler.snapshot(7.0)
    assert (now.blocks_active, now.blocks_cached + now.blocks_free, now.oldest_wait_seconds) == (0, 16, 0.0)
    assert now.blocks_cached > 0


@pytest.mark.parametrize(
    "when", ["waiting", "blocked", "first chunk", "decoding", "in flight", "preempted", "finished"]
)
def test_abort_in_every_state_twice(when):
    drive = Drive(max_num_batched_tokens=16)
    neighbour = drive.submit(range(100, 104), 30)
    drive.step()
    sequence = drive.submit(range(24), 12 if when != "finished" else 1)
    if when == "blocked":
        drive.submit(range(24), 4)
    if when in ("first chunk", "blocked"):
        drive.step()
    if when in ("decoding", "in flight", "preempted", "finished"):
        for _ in range(3):
            drive.step()
    if when == "in flight":
        drive.plan()
        drive.plan()
    if when == "preempted":
        drive.scheduler.preempt(sequence)
    before = drive.scheduler.abort(sequence)
    assert (before is None) == (when == "finished")
    if before is not None:
        assert (before.finish, before.tokens) == ("abort", ())
    assert drive.scheduler.abort(sequence) is None
    assert drive.scheduler.abort(12345) is None
    drive.finish()
    assert drive.text(neighbour) == continuation(range(100, 104), 30)


def test_aborting_one_of_many_that_share_a_prefix_leaves_the_others_alone():
    drive = Drive()
    first = drive.submit(range(20), 9, n=4)
    for _ in range(4):
        drive.step()
    drive.scheduler.abort(first)
    drive.scheduler.abort(first + 2)
    drive.finish()
    assert drive.text(first + 1) == drive.text(first + 3) == continuation(range(20), 9)


def test_three_hundred_aborts_at_once():
    drive = Drive(2000, max_num_seqs=256, max_num_batched_tokens=512)
    sequences = [drive.submit([n % 7, 2, 3, 4, 5], 9) for n in range(300)]
    drive.plan()
    drive.plan()
    assert all(drive.scheduler.abort(sequence) for sequence in sequences)
    drive.finish()


def test_a_row_that_fails_ends_its_own_sequence_only():
    drive = Drive()
    sick, well = drive.submit(range(5), 4), drive.submit(range(9, 15), 4)
    plan = drive.scheduler.schedule()
    assert plan is not None
    good = drive.compute(plan)
    events = drive.scheduler.commit(plan, good._replace(rows=(RowResult((), "logits not finite"), good.rows[1])))
    assert events[0] == Event(sick, (), "error", "logits not finite", started=True)
    drive.events += events
    drive.finish()
    assert drive.text(well) == continuation(range(9, 15), 4)


def test_a_step_that_raises_ends_its_rows_and_no_other():
    drive = Drive(max_num_batched_tokens=8)
    sick = drive.submit(range(8), 4)
    well = drive.submit(range(20, 26), 4)
    drive.plan()
    events = drive.fail("CUDA error")
    assert events == [Event(sick, (), "error", "CUDA error", started=True)]
    drive.finish()
    assert drive.text(well) == continuation(range(20, 26), 4)


def test_a_step_that_raises_with_the_next_one_in_flight():
    drive = Drive(max_num_batched_tokens=8)
    drive.submit(range(8), 4)
    well = drive.submit(range(20, 26), 4)
    drive.plan()
    drive.plan()
    drive.fail()
    drive.finish(depth=2)
    assert drive.text(well) == continuation(range(20, 26), 4)
    assert drive.scheduler.snapshot(0.0).blocks_active == 0


def test_a_failed_step_publishes_nothing():
    drive = Drive()
    drive.submit(range(20), 4)
    drive.plan()
    drive.fail()
    again = drive.submit(range(20), 4)
    drive.step()
    assert drive.rows() == {again: 20}


def test_release_is_idempotent():
    drive = Drive()
    drive.submit(range(9), 4)
    drive.step()
    (sequence,) = drive.scheduler.running
    drive.scheduler.abort(sequence.id)
    drive.scheduler.release(sequence)
    drive.scheduler.release(sequence)
    drive.scheduler.assert_idle()


def test_a_sequence_id_is_used_once():
    drive = Drive()
    drive.submit(range(9), 4)
    drive._next = 0
    with pytest.raises(ValueError, match="exists already"):
        drive.submit(range(9), 4)


@pytest.mark.parametrize("bad", [{"prompt": ()}, {"prompt": (1,), "max_tokens": 0}, {"prompt": (1,), "n": 0}])
def test_a_request_that_means_nothing_is_an_error(bad):
    with pytest.raises(ValueError, match="needs a prompt"):
        Drive().submit(**bad)
