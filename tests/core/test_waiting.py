"""The waiting queue: order by (priority, arrival), blocked entries skipped, numbers right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.core.config import BlockReason
from octavo_engine.core.sequence import Sequence
from octavo_engine.core.stop import StopRule
from octavo_engine.core.waiting import WaitingQueue
from tests.core.drive import Drive


def sequence(identity, priority=0, arrival=None, length=3):
    key = (priority, float(identity if arrival is None else arrival), identity)
    return Sequence(identity, key, [1] * length, length, StopRule(4), 64, -1, True, b"", [])


def drained(queue):
    order = []
    while (first := queue.first()) is not None:
        queue.remove(first)
        order.append(first.id)
    return order


@pytest.mark.parametrize(
    ("entries", "order"),
    [
        ([(0, 0, 0.0), (1, 0, 1.0), (2, 0, 2.0)], [0, 1, 2]),
        ([(0, 0, 5.0), (1, 0, 1.0)], [1, 0]),
        ([(0, 1, 0.0), (1, 0, 1.0), (2, -1, 2.0)], [2, 1, 0]),
        ([(3, 0, 1.0), (2, 0, 1.0)], [2, 3]),
    ],
)
def test_order(entries, order):
    queue = WaitingQueue()
    for identity, priority, arrival in entries:
        queue.add(sequence(identity, priority, arrival))
    assert drained(queue) == order


def test_a_blocked_entry_is_skipped_but_counts_and_keeps_its_place():
    queue = WaitingQueue()
    first, second, third = (sequence(n) for n in range(3))
    for entry in (first, second, third):
        queue.add(entry)
    queue.block(first, BlockReason.GRAMMAR)
    assert queue.first() is second
    assert (len(queue), queue.num_tokens, queue.oldest_arrival()) == (3, 9, 0.0)
    assert queue.reason(first) is BlockReason.GRAMMAR
    queue.unblock(first)
    queue.unblock(third)
    assert drained(queue) == [0, 1, 2]


def test_removing_a_blocked_entry():
    queue = WaitingQueue()
    entry = sequence(0)
    queue.add(entry, BlockReason.ADAPTER)
    queue.remove(entry)
    assert (len(queue), queue.num_tokens, queue.oldest_arrival()) == (0, 0, None)


def test_removing_a_stranger_is_an_error():
    with pytest.raises(ValueError, match="not in the queue"):
        WaitingQueue().remove(sequence(4))


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 5), st.integers(1, 9)), max_size=30), st.randoms())
def test_numbers_hold_whatever_leaves(entries, random):
    queue, inside = WaitingQueue(), []
    for identity, (priority, arrival, length) in enumerate(entries):
        entry = sequence(identity, priority, arrival, length)
        queue.add(entry, random.choice([None, BlockReason.GRAMMAR]))
        inside.append(entry)
        if random.random() < 0.4:
            leaving = inside.pop(random.randrange(len(inside)))
            queue.remove(leaving)
        assert len(queue) == len(inside)
        assert queue.num_tokens == sum(len(entry.tokens) for entry in inside)
        assert queue.oldest_arrival() == min((entry.arrival for entry in inside), default=None)


def test_a_request_that_waits_for_its_grammar_holds_up_nobody():
    drive = Drive(max_num_seqs=1)
    slow = drive.submit(range(3), 2, blocked=BlockReason.GRAMMAR)
    fast = drive.submit(range(3, 6), 2)
    drive.step()
    assert drive.running() == [fast]
    drive.step()
    assert drive.scheduler.schedule() is None
    assert drive.scheduler.snapshot(10.0).waiting == 1
    drive.scheduler.unblock(slow)
    drive.finish()
    assert len(drive.text(slow)) == 2


def test_what_a_sequence_waits_for_may_not_come():
    drive = Drive(max_num_seqs=1)
    sequence = drive.submit(range(3), 2, n=2, blocked=BlockReason.GRAMMAR)
    event = drive.scheduler.give_up(sequence, "no such grammar")
    assert event is not None
    assert (event.finish, event.detail) == ("error", "no such grammar")
    assert drive.scheduler.give_up(sequence, "again") is None
    assert not drive.scheduler.unblock(sequence)
    assert drive.scheduler.unblock(sequence + 1)
    assert not drive.scheduler.unblock(sequence + 1), "it waits for nothing any more"
    drive.finish()
    drive.scheduler.assert_idle()
