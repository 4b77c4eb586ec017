"""Contiguous allocation: consecutive blocks for the longest sequence, hits by copy."""

import pytest

from tests.core.drive import Drive, continuation


def contiguous(blocks=64, **config):
    return Drive(blocks, kv_allocation="contiguous", **config)


def test_a_sequence_gets_consecutive_blocks_for_the_longest():
    drive = contiguous()
    drive.submit(range(5), 2)
    drive.step()
    (admission,) = drive.plans[0].admitted
    assert admission.blocks == (tuple(range(16)),)
    assert drive.scheduler.snapshot(0.0).reserved_slots == 64
    assert drive.scheduler.snapshot(0.0).blocks_active == 16
    drive.finish()
    assert not any(plan.appended for plan in drive.plans)


def test_memory_bounds_the_batch_however_short_the_sequences():
    drive = contiguous(64, max_num_seqs=8)
    for _ in range(8):
        drive.submit(range(3), 4)
    drive.step()
    assert len(drive.running()) == 4
    drive.finish()
    paged = Drive(64, max_num_seqs=8)
    for _ in range(8):
        paged.submit(range(3), 4)
    paged.step()
    assert len(paged.running()) == 8


def test_a_hit_is_copied_and_saves_time_but_no_memory():
    drive = contiguous()
    prompt = list(range(17))
    drive.submit(prompt, 30)
    drive.step()
    drive.submit(prompt, 4)
    plan = drive.step()
    assert [(copy.source, copy.target) for copy in plan.copies] == [(0, 16), (1, 17), (2, 18), (3, 19)]
    assert drive.rows() == {0: 1, 1: 1}
    assert drive.scheduler.snapshot(0.0).blocks_active == 32
    assert drive.scheduler.snapshot(0.0).prefix_hit_tokens == 16
    drive.finish()


def test_a_hit_in_the_run_being_taken_stays_where_it_is():
    drive = contiguous(16)
    prompt = list(range(17))
    drive.submit(prompt, 1)
    drive.finish()
    second = drive.submit(prompt, 2)
    plan = drive.step()
    assert plan.copies == ()
    assert drive.rows() == {second: 1}
    drive.finish()


def test_the_longest_free_run_is_taken_so_that_recent_prefixes_stay():
    drive = contiguous(48)
    for first in (0, 100, 200):
        drive.submit(range(first, first + 9), 1)
        drive.finish()
    drive.submit(range(100, 109), 1)
    plan = drive.step()
    assert [(copy.source, copy.target) for copy in plan.copies] == [(16, 0), (17, 1)]
    drive.finish()


def test_a_copy_is_found_after_its_original_was_evicted():
    drive = contiguous(32)
    prompt = list(range(17))
    drive.submit(prompt, 1)
    drive.finish()
    copy = drive.submit(prompt, 20)
    drive.step()
    assert drive.plans[-1].copies
    drive.submit(range(100, 117), 1)
    drive.step()
    assert drive.running() == [copy], "the original's run is another's now"
    drive.finish()
    again = drive.submit(prompt, 1)
    drive.step()
    assert drive.rows() == {again: 1}


@pytest.mark.parametrize("sharing", [True, False])
def test_nothing_is_preempted_and_every_text_is_right(sharing):
    drive = contiguous(35, prefix_sharing=sharing)
    sequences = [drive.submit(range(start, start + 12), 40) for start in (0, 0, 5, 0, 9)]
    drive.finish()
    assert drive.scheduler.snapshot(0.0).preemptions == 0
    for sequence, start in zip(sequences, (0, 0, 5, 0, 9), strict=True):
        assert drive.text(sequence) == continuation(range(start, start + 12), 40)
    assert (drive.scheduler.snapshot(0.0).prefix_hit_tokens > 0) == sharing
