"""Identical cold prompts compute once: followers wait for the leader, and never for a leader that is gone."""

import pytest

from octavo_engine.core.config import BlockReason
from tests.core.drive import Drive, continuation

PROMPT = tuple(range(40))


def reasons(drive, *sequences):
    queue = drive.scheduler.waiting
    return [queue.reason(drive.scheduler._sequences[sequence]) for sequence in sequences]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("choices", [1, 64], ids=["64 requests", "n=64"])
@pytest.mark.parametrize("allocation", ["paged", "contiguous"])
def test_64_identical_cold_prompts_of_512_tokens_compute_once(depth, choices, allocation):
    drive = Drive(
        64 * 34,
        block_size=16,
        max_model_len=544,
        max_num_seqs=64,
        max_num_batched_tokens=256,
        max_plans_in_flight=depth,
        kv_allocation=allocation,
    )
    prompt = [n * 7 % 250 for n in range(512)]
    for _ in range(64 // choices):
        drive.submit(prompt, 1, n=choices)
    drive.finish(depth)
    assert drive.computed <= 512 + 64 * 16
    assert all(drive.text(sequence) == continuation(prompt, 1) for sequence in range(64))
    assert drive.scheduler.snapshot(0.0).prefix_hit_tokens == 63 * 496


def test_followers_wait_for_the_last_block_they_share():
    drive = Drive(max_num_batched_tokens=24)
    leader = drive.submit(PROMPT, 4)
    follower = drive.submit(PROMPT, 4)
    shorter = drive.submit((*PROMPT[:20], 500, 501), 4)
    drive.step()
    drive.plan()
    assert drive.rows() == {leader: 16, shorter: 2}, "the first 24 tokens are published, the rest is being computed"
    assert reasons(drive, follower) == [BlockReason.PREFIX]
    drive.commit()
    drive.step()
    assert drive.rows() == {leader: 1, shorter: 1, follower: 4}
    drive.finish()


def test_less_than_a_full_block_in_common_holds_nobody_back():
    drive = Drive()
    for tail in range(4):
        drive.submit((1, 2, 3, 100 + tail, 5, 6, 7, 8), 2)
    drive.step()
    assert len(drive.running()) == 4


def test_another_salt_holds_nobody_back_and_hits_nothing():
    drive = Drive()
    for salt in ("a", "b", "c"):
        drive.submit(PROMPT[:20], 2, salt=salt)
    drive.step()
    assert len(drive.running()) == 3
    drive.finish()
    assert drive.scheduler.snapshot(0.0).prefix_hit_tokens == 0


def test_without_sharing_nobody_is_held_back():
    drive = Drive(prefix_sharing=False)
    for _ in range(3):
        drive.submit(PROMPT[:20], 2)
    drive.step()
    assert len(drive.running()) == 3
    drive.finish()


def test_a_request_that_needs_all_positions_neither_waits_nor_reads_but_writes():
    drive = Drive()
    drive.submit(PROMPT[:20], 2)
    whole = drive.submit(PROMPT[:20], 2, needs_all_positions=True)
    drive.step()
    assert drive.rows() == {0: 20, whole: 20}
    drive.finish()
    again = drive.submit(PROMPT[:20], 2, needs_all_positions=True)
    drive.step()
    assert drive.rows() == {again: 20}
    drive.finish()

    writer = Drive()
    writer.submit(PROMPT[:20], 1, needs_all_positions=True)
    writer.finish()
    reader = writer.submit(PROMPT[:20], 1)
    writer.step()
    assert writer.rows() == {reader: 4}


@pytest.mark.parametrize("how", ["abort", "preempt", "fail"])
def test_when_the_leader_goes_the_next_one_leads_in_the_next_step(how):
    drive = Drive()
    leader, second, third = (drive.submit(PROMPT, 4) for _ in range(3))
    drive.plan()
    assert reasons(drive, second, third) == [BlockReason.PREFIX] * 2
    if how == "fail":
        drive.fail()
    else:
        drive.scheduler.abort(leader) if how == "abort" else drive.scheduler.preempt(leader)
        drive.commit()
    drive.plan()
    leads = leader if how == "preempt" else second
    follows = [second, third] if how == "preempt" else [third]
    assert drive.running() == [leads]
    assert reasons(drive, *follows) == [BlockReason.PREFIX] * len(follows)
    drive.finish()
    assert all(drive.text(s) == continuation(PROMPT, 4) for s in follows)


def test_a_follower_may_be_aborted():
    drive = Drive()
    drive.submit(PROMPT, 4)
    follower, other = drive.submit(PROMPT, 4), drive.submit(PROMPT, 4)
    drive.plan()
    assert reasons(drive, follower, other) == [BlockReason.PREFIX] * 2
    assert drive.scheduler.abort(follower).finish == "abort"
    drive.finish()
    assert drive.text(other) == continuation(PROMPT, 4)


def test_a_longer_follower_computes_its_own_rest_and_leads_it():
    drive = Drive()
    drive.submit(PROMPT[:17], 2)
    long = drive.submit(PROMPT, 2)
    longer = drive.submit((*PROMPT, 90, 91, 92), 2)
    drive.step()
    assert drive.running() == [0]
    drive.plan()
    assert drive.rows() == {0: 1, long: 24}
    assert reasons(drive, longer) == [BlockReason.PREFIX]
    drive.commit()
    drive.step()
    assert drive.rows()[longer] == 3
    drive.finish()


def test_a_great_many_followers_are_held_back_over_several_steps():
    """A step's work is bounded by the batch, not by the queue."""
    drive = Drive(max_num_seqs=4, max_num_batched_tokens=16)
    drive.submit(range(100, 120), 30)
    drive.step()
    for _ in range(40):
        drive.submit(PROMPT, 1)
    held = []
    for _ in range(3):
        drive.plan()
        held.append(sum(reason is BlockReason.PREFIX for reason in reasons(drive, *range(2, 41))))
        drive.commit()
    assert 0 < max(held) <= 2 * 4
    drive.finish()
    assert all(drive.text(n) == continuation(PROMPT, 1) for n in range(1, 41))
