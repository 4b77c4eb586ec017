"""Holding at zero: bounded in number, bytes and time; nobody is lost and nobody is answered twice (faults.md B51)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.gateway.hold import Hold, HoldBounds
from octavo_operator.gateway.refusal import Refusal

STEPS = st.lists(
    st.tuples(st.sampled_from(["offer", "send", "leave", "wait"]), st.integers(0, 20), st.integers(0, 9)), max_size=100
)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.integers(0, 5), st.integers(1, 20))
def test_everyone_is_sent_or_answered_once_and_no_bound_is_broken(
    steps: list[tuple[str, int, int]], most: int, most_bytes: int
) -> None:
    hold, now = Hold(HoldBounds(most, 10.0, most_bytes)), 0.0
    waiting: dict[str, tuple[float, int]] = {}
    for what, number, size in steps:
        request_id = str(number)
        if what == "offer":
            refused = hold.offer(request_id, now, size, size)
            if request_id in waiting:
                assert refused is None
            elif refused is None:
                waiting[request_id] = (now, size)
            else:
                assert refused.status == 503
                assert refused.retry_after is not None
                assert len(waiting) >= most or sum(s for _, s in waiting.values()) + size > most_bytes
        elif what == "send":
            first = hold.first()
            assert first == next(iter(waiting), None)
            if first is not None:
                assert hold.leave(first) is not None
                del waiting[first]
        elif what == "leave":
            assert (hold.leave(request_id) is not None) == (request_id in waiting)
            waiting.pop(request_id, None)
        else:
            now += size
            late = [i for i, (since, _) in waiting.items() if now - since >= 10.0]
            assert [i for i, _ in hold.expire(now)] == late
            for i in late:
                del waiting[i]
        assert len(hold) == len(waiting) <= most
        assert hold.bytes == hold.blocks == sum(size for _, size in waiting.values())
        assert len(hold) <= 1 or hold.bytes <= most_bytes


def test_b51_fifty_at_once_wait_in_their_order_and_are_sent_when_a_pod_is_there() -> None:
    hold = Hold(HoldBounds(max_requests=50, timeout_seconds=300))
    assert all(hold.offer(f"{n}", n / 100, 1000, 4) is None for n in range(50))
    over = hold.offer("one more", 1.0, 1000, 4)
    assert isinstance(over, Refusal)
    assert over.code == "hold_full"
    assert (hold.blocks, hold.oldest_seconds(10.0)) == (200, 10.0)
    assert not hold.expire(299.0)
    order = []
    while (first := hold.first()) is not None:
        hold.leave(first)
        order.append(int(first))
    assert order == list(range(50))


def test_b51_who_waits_too_long_is_told_and_not_dropped() -> None:
    hold = Hold(HoldBounds(timeout_seconds=30))
    hold.offer("a", 0.0, 1, 1)
    hold.offer("b", 20.0, 1, 1)
    ((who, answer),) = hold.expire(30.0)
    assert (who, answer.status, answer.code) == ("a", 503, "no_replica_in_time")
    assert hold.first() == "b"


def test_a_service_that_holds_nobody_refuses_at_once() -> None:
    refused = Hold(HoldBounds(max_requests=0)).offer("a", 0.0, 1, 1)
    assert isinstance(refused, Refusal)
    assert refused.code == "no_replica"
