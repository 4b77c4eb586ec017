"""Static batching, the baseline: padded, nobody admitted before all have finished, finished rows computed on."""

import pytest

from tests.core.drive import Drive, continuation


def static(blocks=64, **config):
    return Drive(blocks, policy="static", **config)


def test_nobody_is_admitted_before_the_whole_batch_has_finished():
    drive = static(max_num_seqs=2)
    short, long, waiting = drive.submit(range(3), 2), drive.submit(range(5, 8), 6), drive.submit(range(9, 12), 2)
    for _ in range(6):
        drive.step()
        assert waiting not in drive.rows()
    assert (drive.end(short).finish, drive.end(long).finish) == ("length", "length")
    drive.step()
    assert drive.rows() == {waiting: 3}
    drive.finish()
    assert drive.scheduler.snapshot(0.0).static_batches == 2


def test_prompts_are_padded_to_the_longest_of_the_batch():
    drive = static()
    for size in (3, 11, 7):
        drive.submit(range(size), 2)
    drive.step()
    assert [row.num_tokens + row.padding for row in drive.plans[0].rows] == [11, 11, 11]
    drive.finish()


@pytest.mark.parametrize("budget", [8, 16, 64])
@pytest.mark.parametrize("sizes", [(3, 40, 17), (1, 60), (40, 40, 40), (2, 2)])
def test_padded_prompts_go_in_chunks_and_all_are_prefilled_before_any_decodes(budget, sizes):
    drive = static(max_num_batched_tokens=budget)
    sequences = [drive.submit(range(n * 100, n * 100 + size), 3) for n, size in enumerate(sizes)]
    drive.finish()
    prefill = [row for plan in drive.plans for row in plan.rows if row.padding or row.start < sizes[row.sequence]]
    assert sum(row.num_tokens for row in prefill) == sum(sizes)
    assert sum(row.num_tokens + row.padding for row in prefill) == max(sizes) * len(sizes)
    first_decode = next(n for n, plan in enumerate(drive.plans) if plan.rows[0].start >= sizes[plan.rows[0].sequence])
    assert all(row in prefill for plan in drive.plans[:first_decode] for row in plan.rows)
    if min(sizes) >= -(-max(sizes) // budget):
        assert all(plan.num_tokens <= budget for plan in drive.plans)
    for number, (sequence, size) in enumerate(zip(sequences, sizes, strict=True)):
        assert drive.text(sequence) == continuation(range(number * 100, number * 100 + size), 3)


@pytest.mark.parametrize("depth", [1, 2])
def test_finished_rows_are_computed_on_and_hold_their_blocks_until_the_last_ends(depth):
    drive = static(max_plans_in_flight=depth)
    short, long = drive.submit(range(9), 2), drive.submit(range(20, 29), 10)
    held = []
    while drive.scheduler.has_work:
        if len(drive.in_flight) < depth and drive.plan():
            held.append(drive.scheduler.snapshot(0.0).blocks_active)
        else:
            drive.commit()
    assert drive.text(short) == continuation(range(9), 2)
    assert drive.text(long) == continuation(range(20, 29), 10)
    assert held == sorted(held), "nothing was given back before the end"
    discarded = [row for plan in drive.plans for row in plan.rows if row.discard]
    assert len(discarded) >= 8 - (depth - 1)
    assert {row.sequence for row in discarded} == {short}
    assert {len(plan.rows) for plan in drive.plans} == {2}
    drive.scheduler.assert_idle()


def test_a_batch_is_only_as_large_as_fits_to_its_end():
    drive = static(20, prefix_sharing=False)
    for n in range(4):
        drive.submit(range(n * 100, n * 100 + 4), 36)
    drive.step()
    assert len(drive.plans[0].rows) == 2
    drive.finish()
    now = drive.scheduler.snapshot(0.0)
    assert (now.preemptions, now.static_batches) == (0, 2)


@pytest.mark.parametrize("allocation", ["paged", "contiguous"])
def test_hits_of_an_earlier_batch_are_used(allocation):
    drive = static(kv_allocation=allocation, max_num_seqs=2)
    for _ in range(4):
        drive.submit(range(20), 3)
    drive.finish()
    assert drive.scheduler.snapshot(0.0).prefix_hit_tokens == 2 * 16
    assert all(drive.text(n) == continuation(range(20), 3) for n in range(4))


@pytest.mark.parametrize("when", ["prefilling", "not yet", "decoding", "waiting"])
def test_an_aborted_row_stays_in_its_batch(when):
    drive = static(max_num_batched_tokens=12, max_num_seqs=2)
    other, sequence = drive.submit(range(20), 8), drive.submit(range(100, 116), 8)
    waiting = drive.submit(range(200, 204), 2)
    for _ in range({"not yet": 1, "prefilling": 3, "decoding": 6, "waiting": 1}[when]):
        drive.step()
    gone = waiting if when == "waiting" else sequence
    event = drive.scheduler.abort(gone)
    assert event is not None
    assert event.finish == "abort"
    assert drive.scheduler.abort(gone) is None
    drive.finish()
    assert drive.text(other) == continuation(range(20), 8)


def test_a_failing_step_ends_the_batch_and_not_the_queue():
    drive = static(max_num_seqs=2)
    for n in range(3):
        drive.submit(range(n * 10, n * 10 + 5), 3)
    drive.step()
    drive.plan()
    assert [event.finish for event in drive.fail()] == ["error", "error"]
    drive.finish()
    assert drive.text(2) == continuation(range(20, 25), 3)


def test_nobody_is_preempted_out_of_a_batch():
    drive = static()
    sequence = drive.submit(range(5), 3)
    drive.step()
    assert not drive.scheduler.preempt(sequence)


@pytest.mark.parametrize("policy", ["static", "continuous"])
@pytest.mark.parametrize("allocation", ["paged", "contiguous"])
@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_no_switch_changes_a_token(policy, allocation, sharing, depth):
    drive = Drive(
        96, policy=policy, kv_allocation=allocation, prefix_sharing=sharing, max_plans_in_flight=depth, max_num_seqs=4
    )
    prompts = [
        tuple(range(start, start + size)) for start, size in [(0, 9), (0, 20), (5, 12), (0, 20), (7, 1), (0, 33)]
    ]
    sequences = [drive.submit(prompt, 4 + n) for n, prompt in enumerate(prompts)]
    drive.finish(depth)
    for n, (sequence, prompt) in enumerate(zip(sequences, prompts, strict=True)):
        assert drive.text(sequence) == continuation(prompt, 4 + n)
    now = drive.scheduler.snapshot(0.0)
    assert (now.static_batches > 0) == (policy == "static")
    assert (now.reserved_slots > 0) == (allocation == "contiguous")
    assert (now.prefix_hit_tokens > 0) == sharing
