"""What is in flight: counted once whatever is told, in any order and any number of times."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.gateway.durations import REMEMBERED, Durations
from octavo_operator.gateway.in_flight import LEASE_SECONDS, InFlight
from octavo_operator.gateway.types import Outcome, Wanted

from .fleets import Bench, sample

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["picked", "begun", "answered", "ended", "expire"]),
        st.sampled_from("abcde"),
        st.sampled_from(["one", "two", "three"]),
        st.floats(0, 12),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_counts_are_those_of_a_plain_model(events: list[tuple[str, str, str, float]]) -> None:
    counted, now = InFlight(), 0.0
    model: dict[str, tuple[str, float, bool]] = {}
    past: list[tuple[float, Counter[str]]] = [(-1.0, Counter())]
    for what, request_id, uid, passed in events:
        now += passed
        if what == "picked":
            counted.picked(request_id, uid, now)
            model[request_id] = (uid, now, False)
        elif what == "begun":
            counted.begun(request_id, uid, now)
            model[request_id] = (uid, model.get(request_id, ("", now, True))[1], True)
        elif what == "answered":
            counted.answered(request_id, now)
            if request_id in model:
                model[request_id] = (*model[request_id][:2], True)
        elif what == "ended":
            assert (counted.ended(request_id, now) is not None) == (request_id in model)
            model.pop(request_id, None)
        else:
            lost = {i for i, (_, at, begun) in model.items() if not begun and at + LEASE_SECONDS <= now}
            assert set(counted.expire(now)) == lost
            for i in lost:
                del model[i]
        expected = Counter(uid for uid, _, _ in model.values())
        assert {u: counted.count(u) for u in ("one", "two", "three")} == {
            u: expected[u] for u in ("one", "two", "three")
        }
        assert len(counted) == len(model)
        past.append((now, expected))
    for at, then in past:
        if now - at < 25 and at == max(t for t, _ in past if t <= at):
            last = [c for t, c in past if t <= at][-1]
            assert all(counted.count_at(uid, at) == last[uid] for uid in ("one", "two", "three")), (at, then)


def test_a_restarted_picker_counts_what_it_is_told_of() -> None:
    counted = InFlight()
    counted.begun("before", "one", 5.0)
    counted.answered("before", 6.0)
    assert counted.count("one") == 1
    assert counted.ended("before", 7.0) is not None
    assert counted.ended("before", 7.0) is None
    assert counted.ended("never heard of", 7.0) is None
    assert counted.count("one") == 0


def test_the_endpoint_that_served_is_the_one_that_is_counted() -> None:
    bench = Bench(2)
    pick = bench.pick(Wanted("a"))
    assert pick is not None
    first, second = (e.uid for e in pick.order)
    bench.fleet.begun("a", second, bench.now)
    assert (bench.fleet.in_flight.count(first), bench.fleet.in_flight.count(second)) == (0, 1)


def test_a_pick_counts_at_once_and_one_that_never_began_is_forgotten() -> None:
    bench = Bench(8)
    assert sorted(int(p.order[0].uid[-1]) for _ in range(8) if (p := bench.pick())) == list(range(8))
    bench.now += LEASE_SECONDS
    bench.report()
    bench.pick()
    assert len(bench.fleet.in_flight) == 1


def test_the_load_of_others_is_seen_and_our_own_is_not_counted_twice() -> None:
    bench = Bench(2)
    ours = [bench.send()[0] for _ in range(6)]
    bench.now += 1
    bench.fleet.sampled(sample(0, bench.now, running=3 + 10, waiting=2))
    bench.fleet.sampled(sample(1, bench.now, running=3))
    assert bench.fleet.candidate("pod-0", bench.now).load == 3 + 12
    assert bench.fleet.candidate("pod-1", bench.now).load == 3
    assert all(bench.send()[1] == 1 for _ in range(5))
    for request_id in ours:
        bench.end(request_id)
    assert bench.fleet.candidate("pod-0", bench.now).load == 12


def test_a_late_sample_is_compared_with_what_was_ours_at_its_time() -> None:
    bench = Bench(1)
    taken = bench.now + 1
    bench.now = taken
    for _ in range(4):
        bench.send()
    bench.now += 4
    for _ in range(5):
        bench.send()
    bench.fleet.sampled(sample(0, taken, running=4))
    assert bench.fleet.candidate("pod-0", bench.now).load == 9
    bench.fleet.sampled(sample(0, taken - 0.5, running=50))
    assert bench.fleet.candidate("pod-0", bench.now).load == 9


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=700), st.floats(0, 120), st.floats(0, 20), st.floats(0, 20))
def test_survival_is_a_chance_that_falls_with_the_horizon(
    seen: list[float], age: float, near: float, further: float
) -> None:
    durations = Durations()
    for seconds in seen:
        durations.add(seconds)
    assert 0 <= durations.survival(age, near + further) <= durations.survival(age, near) <= 1
    kept = seen[-REMEMBERED:]
    alive = [s for s in kept if s > age]
    expected = sum(s > age + near for s in alive) / len(alive) if alive else 1.0
    assert durations.survival(age, near) == expected


def test_what_soon_ends_weighs_less() -> None:
    bench = Bench(2)
    for _ in range(40):
        request_id, _ = bench.send()
        bench.fleet.answered(request_id, bench.now)
        bench.now += 5
        bench.report()
        bench.end(request_id)
    first, where = bench.send()
    bench.fleet.answered(first, bench.now)
    bench.now += 4
    bench.report()
    second, other = bench.send()
    assert other != where
    bench.fleet.answered(second, bench.now)
    assert bench.fleet.candidate(f"pod-{where}", bench.now).soon < bench.fleet.candidate(f"pod-{other}", bench.now).soon
    assert bench.send()[1] == where
    bench.end(first, Outcome.LEFT)
