"""What is refused before anything begins."""

import pytest

from octavo_engine.core.config import CacheGroup, Refusal
from octavo_engine.core.limits import CapacityError
from octavo_engine.core.stop import StopRule
from tests.core.drive import Drive, continuation


@pytest.mark.parametrize(
    ("config", "largest"),
    [
        ({"blocks": 8}, 32),
        ({"blocks": 15}, 60),
        ({"blocks": 15, "kv_allocation": "contiguous"}, 60),
        ({"groups": (CacheGroup(16), CacheGroup(4, 8))}, 16),
        ({"groups": (CacheGroup(10), CacheGroup(16, 8))}, 40),
        ({"groups": (CacheGroup(16), CacheGroup(4, 8)), "max_num_batched_tokens": 8}, 16),
        ({"groups": (CacheGroup(16), CacheGroup(6, 8)), "kv_allocation": "contiguous"}, 24),
    ],
)
def test_a_pool_too_small_for_one_longest_sequence_names_the_largest_that_fits(config, largest):
    with pytest.raises(CapacityError, match=f"lower it to {largest} or less") as caught:
        Drive(**config)
    assert caught.value.largest == largest
    drive = Drive(**config, max_model_len=largest)
    sequence = drive.submit(range(largest - 2), 9)
    drive.finish()
    assert drive.text(sequence) == continuation(range(largest - 2), 2)


@pytest.mark.parametrize("blocks", [16, 17])
def test_a_pool_that_just_fits_starts_and_serves_the_longest(blocks):
    drive = Drive(blocks)
    sequence = drive.submit(range(63), 9)
    drive.finish()
    assert drive.text(sequence) == continuation(range(63), 1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"groups": ()}, "no KV group"),
        ({"max_model_len": 1}, "at least 2"),
        ({"max_num_seqs": 0}, "at least 1"),
        ({"max_num_batched_tokens": 4}, "raise the first or lower"),
    ],
)
def test_bad_sizes_are_refused_with_the_remedy(config, message):
    with pytest.raises(ValueError, match=message):
        Drive(**config)


@pytest.mark.parametrize(
    ("length", "fits"), [(1, True), (62, True), (63, True), (64, False), (65, False), (500, False)]
)
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("warm", [False, True])
def test_a_prompt_that_leaves_no_room_for_a_token_is_refused_and_others_go_on(length, fits, n, warm):
    drive = Drive(16, watermark=0.2)
    if warm:
        drive.submit(range(20), 2)
        drive.finish()
    answer = drive.try_submit(range(length), 4, n=n)
    assert isinstance(answer, Refusal) != fits
    if isinstance(answer, Refusal):
        assert answer.reason == "never_fits"
        assert str(length) in answer.detail
        assert "shorten the prompt" in answer.detail
    small = drive.submit((1, 2, 3), 3)
    drive.finish(limit=500)
    assert drive.text(small) == continuation((1, 2, 3), 3)


def test_more_tokens_than_the_context_holds_are_cut_not_refused():
    drive = Drive(16)
    sequence = drive.submit(range(60), stop=StopRule(1000))
    drive.finish()
    assert (len(drive.text(sequence)), drive.end(sequence).finish) == (4, "length")


def test_a_full_queue_counts_choices_and_forgets_what_left():
    drive = Drive(max_queue_requests=3, max_num_seqs=1)
    drive.submit(range(4), 2, n=2)
    refusal = drive.try_submit(range(4), 2, n=2)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.detail) == ("queue_full", "2 sequences are waiting already; retry later")
    assert drive.scheduler.snapshot(0.0).waiting == 2
    drive.submit(range(4), 2)
    drive.step()
    drive.submit(range(4), 2)
    drive.finish()


def test_the_queue_is_bounded_by_tokens_but_never_closed_to_the_first():
    drive = Drive(max_queue_tokens=10)
    drive.submit(range(30), 2)
    refusal = drive.try_submit(range(1), 2)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "queue_full"
    drive.step()
    drive.submit(range(5), 2)
    drive.submit(range(5), 2)
    assert isinstance(drive.try_submit(range(1), 2), Refusal)
    drive.finish()


def test_a_preempted_sequence_returns_to_a_full_queue():
    drive = Drive(max_queue_requests=1)
    first = drive.submit(range(5), 9)
    drive.step()
    drive.submit(range(20, 25), 9)
    drive.scheduler.preempt(first)
    assert drive.scheduler.snapshot(0.0).waiting == 2
    drive.finish()
    assert drive.text(first) == continuation(range(5), 9)
