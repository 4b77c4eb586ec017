"""Pooled requests: they end with their prompt, give its embedding once, and read no cached prefix."""

import pytest

from octavo_engine.core.config import Refusal
from octavo_engine.core.step import RowResult, StepResult
from octavo_engine.core.stop import StopRule
from tests.core.drive import Drive, continuation, embedding

PROMPT = tuple(range(23))
SCHEDULERS = [{}, {"policy": "static"}, {"kv_allocation": "contiguous"}, {"prefix_sharing": False}]


def embed(drive, prompt=PROMPT, **request):
    return drive.submit(prompt, 0, pooled=True, **request)


def check_embedded(drive, sequence, prompt=PROMPT):
    end = drive.end(sequence)
    assert (end.finish, end.stop_reason, end.tokens, end.pooled) == ("stop", -1, (), embedding(prompt))
    events = [event for event in drive.events if event.sequence == sequence]
    assert sum(event.started for event in events) == 1
    assert [event.pooled for event in events if event.pooled] == [embedding(prompt)]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [8, 10, 64])
@pytest.mark.parametrize("config", SCHEDULERS)
def test_it_ends_with_its_prompt_beside_others_that_write(config, budget, depth):
    drive = Drive(max_num_batched_tokens=budget, max_plans_in_flight=depth, **config)
    writing, pooled, late = drive.submit((7, 8, 9), 12), embed(drive), drive.submit(PROMPT, 5)
    drive.finish(depth)
    check_embedded(drive, pooled)
    assert drive.text(writing) == continuation((7, 8, 9), 12)
    assert drive.text(late) == continuation(PROMPT, 5)


def test_it_neither_waits_nor_reads_but_writes():
    drive = Drive()
    drive.submit(PROMPT, 2)
    pooled = embed(drive)
    drive.step()
    assert drive.rows() == {0: 23, pooled: 23}
    drive.finish()
    again = embed(drive)
    drive.step()
    assert drive.rows() == {again: 23}
    assert drive.end(again).cached_tokens == 0
    drive.finish()

    writer = Drive()
    embed(writer)
    writer.finish()
    reader = writer.submit(PROMPT, 1)
    writer.step()
    assert writer.rows() == {reader: 3}


@pytest.mark.parametrize("policy", ["continuous", "static"])
def test_a_prompt_as_long_as_the_context_and_the_cache_is_embedded(policy):
    drive = Drive(16, policy=policy)
    pooled = embed(drive, range(64))
    drive.finish()
    check_embedded(drive, pooled, range(64))
    refusal = drive.try_submit(range(65), 0, pooled=True)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, "generated" in refusal.detail) == ("never_fits", False)


@pytest.mark.parametrize(("pooled", "max_tokens"), [(True, 1), (True, -1), (False, 0)])
def test_only_what_is_pooled_has_no_tokens_to_write(pooled, max_tokens):
    with pytest.raises(ValueError, match="or of 0 if it is pooled"):
        Drive().try_submit(PROMPT, stop=StopRule(max_tokens), pooled=pooled)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("after", [1, 2])
def test_preempted_it_begins_again_and_tells_once(after, depth):
    drive = Drive(max_num_batched_tokens=8, max_plans_in_flight=depth)
    pooled = embed(drive)
    for _ in range(after):
        drive.step()
    assert drive.scheduler.preempt(pooled)
    drive.step()
    assert drive.plans[-1].rows[0].start == 0
    drive.finish(depth)
    check_embedded(drive, pooled)
    assert drive.scheduler.snapshot(0.0).recomputed_tokens == 8 * after


@pytest.mark.parametrize("resumed", [False, True])
def test_an_embedding_already_on_its_way_counts_after_a_preemption(resumed):
    drive = Drive(max_plans_in_flight=2)
    pooled = embed(drive)
    drive.plan()
    assert drive.scheduler.preempt(pooled)
    if resumed:
        drive.plan()
        assert drive.rows() == {pooled: 23}
    drive.commit()
    check_embedded(drive, pooled)
    drive.finish()
    check_embedded(drive, pooled)


@pytest.mark.parametrize("how", ["abort", "fail", "row"])
def test_what_ends_it_before_its_prompt_leaves_nothing(how):
    drive = Drive(max_num_batched_tokens=8)
    pooled = embed(drive)
    drive.step()
    if how == "abort":
        drive.events.append(drive.scheduler.abort(pooled))
    else:
        plan = drive.plan()
        if how == "fail":
            drive.fail()
        else:
            drive.in_flight.clear()
            failed = StepResult(plan.number, (RowResult((), "the numbers are not finite"),))
            drive.events += drive.scheduler.commit(plan, failed)
    assert drive.end(pooled).finish == ("abort" if how == "abort" else "error")
    assert not drive.end(pooled).pooled
    drive.finish()


def test_the_end_of_a_prompt_without_an_embedding_is_a_broken_runner():
    drive = Drive()
    embed(drive)
    plan = drive.plan()
    with pytest.raises(ValueError, match="no embedding"):
        drive.scheduler.commit(plan, StepResult(plan.number, (RowResult(),)))
