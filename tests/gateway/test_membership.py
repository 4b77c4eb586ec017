"""Who may be sent a request: faults.md B56 (membership) and the first half of B58 (missing, frozen, failing)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo_operator.gateway.fleet import ANSWERED_SECONDS
from octavo_operator.gateway.policies import Consistent, LeastLoad, RoundRobin
from octavo_operator.gateway.prefix_aware import PrefixAware
from octavo_operator.gateway.types import Endpoint, Outcome, Standing, Wanted
from octavo_operator.gateway.vitals import STALE_SECONDS

from .fleets import Bench, sample

POLICIES = [PrefixAware, LeastLoad, RoundRobin, Consistent]


@pytest.mark.parametrize(
    "change", [{"terminating": True}, {"ready": False}, {"cordoned": True}, {"known": False}], ids=str
)
@pytest.mark.parametrize("policy", POLICIES)
def test_b56_a_pod_that_leaves_gets_nothing_new_and_keeps_what_it_has(policy: type, change: dict[str, bool]) -> None:
    bench = Bench(3, policy())
    held = [bench.send()[0] for _ in range(30)]
    before = bench.fleet.in_flight.count("pod-1")
    bench.endpoints[1] = replace(bench.endpoints[1], **change)
    bench.update()
    assert all(bench.send()[1] != 1 for _ in range(30))
    assert bench.fleet.in_flight.count("pod-1") == before
    for request_id in held:
        bench.end(request_id)
    assert bench.fleet.in_flight.count("pod-1") == 0


def test_b56_an_address_that_another_pod_takes_over_is_another_endpoint() -> None:
    bench = Bench(2, policy := PrefixAware())
    wanted = Wanted("a", (b"one", b"two"))
    _, to = bench.send(wanted)
    bench.endpoints[to] = Endpoint("another", bench.endpoints[to].address)
    bench.update()
    bench.fleet.sampled(replace(sample(0, bench.now), uid="another"))
    pick = bench.pick(replace(wanted, request_id="b"))
    assert pick is not None
    assert pick.matched_tokens == 0
    assert f"pod-{to}" not in policy._indexes


@pytest.mark.parametrize("change", [{"terminating": True}, {"ready": False}, {"cordoned": True}], ids=str)
def test_b56_no_pod_left_means_nobody_and_not_somebody(change: dict[str, bool]) -> None:
    bench = Bench(2)
    bench.endpoints = {number: replace(pod, **change) for number, pod in bench.endpoints.items()}
    bench.update()
    assert bench.pick() is None
    bench.endpoints = {}
    bench.update()
    assert bench.pick() is None


def test_absence_of_news_never_empties_the_fleet() -> None:
    bench = Bench(3)
    for number in (0, 2):
        bench.endpoints[number] = replace(bench.endpoints[number], ready=False, answered_ready_at=bench.now)
    bench.endpoints[1] = replace(bench.endpoints[1], ready=False)
    bench.update()
    assert {bench.send()[1] for _ in range(10)} == {0, 2}
    bench.now += ANSWERED_SECONDS + 1
    assert bench.pick() is None


def test_with_no_news_of_any_pod_all_are_used() -> None:
    bench = Bench(4)
    bench.now += STALE_SECONDS + 1
    assert {bench.fleet.standing(f"pod-{n}", bench.now) for n in range(4)} == {Standing.SILENT}
    assert {bench.send()[1] for _ in range(4)} == {0, 1, 2, 3}


@pytest.mark.parametrize("policy", POLICIES)
def test_b58_a_silent_pod_is_the_last_choice(policy: type) -> None:
    bench = Bench(4, policy())
    for _ in range(int(STALE_SECONDS) + 2):
        bench.now += 1
        bench.report(silent=(2,))
    picks = [bench.pick() for _ in range(200)]
    assert all(pick and pick.order[0].uid != "pod-2" and pick.order[-1].uid == "pod-2" for pick in picks)
    bench.now += 1
    bench.report()
    assert 2 in {bench.send()[1] for _ in range(40)} or policy is Consistent


@pytest.mark.parametrize("policy", POLICIES)
def test_b58_a_pod_that_never_reported_is_the_last_choice(policy: type) -> None:
    bench = Bench(3, policy())
    bench.endpoints[3] = Endpoint("pod-3", "10.0.0.3:8000")
    bench.update()
    assert all(bench.send()[1] != 3 for _ in range(60))
    bench.fleet.sampled(sample(3, bench.now))
    assert 3 in {bench.send()[1] for _ in range(60)} or policy is Consistent


@pytest.mark.parametrize("how", ["idle", "stuck"])
@pytest.mark.parametrize("policy", POLICIES)
def test_b58_a_pod_frozen_at_idle_attracts_nothing(policy: type, how: str) -> None:
    bench = Bench(4, policy())
    late = []
    for second in range(60):
        bench.now += 1
        bench.report(**{how: (2,)})
        for _ in range(8):
            request_id, to = bench.send()
            if to != 2:
                bench.fleet.answered(request_id, bench.now)
                bench.end(request_id)
            elif second > 20:
                late.append(second)
    assert not late


@pytest.mark.parametrize("policy", POLICIES)
def test_b58_a_pod_that_fails_at_once_attracts_nothing(policy: type) -> None:
    bench = Bench(4, policy())
    bad = 0
    for _ in range(120):
        bench.now += 1
        bench.report()
        for _ in range(10):
            request_id, to = bench.send()
            bench.end(request_id, Outcome.FAILED if to == 2 else Outcome.DONE)
            bad += to == 2
    assert bad <= 3 + 7
    for _ in range(60):
        bench.now += 1
        bench.report()
        for _ in range(10):
            bench.end(bench.send()[0])
    assert bench.fleet.standing("pod-2", bench.now) is Standing.GOOD


def test_b58_if_all_fail_all_are_used() -> None:
    bench = Bench(3)
    for _ in range(30):
        bench.end(bench.send()[0], Outcome.FAILED)
    assert {bench.fleet.standing(f"pod-{n}", bench.now) for n in range(3)} == {Standing.EJECTED}
    assert {bench.send()[1] for _ in range(9)} == {0, 1, 2}


def test_a_pod_back_from_ejection_is_tried_with_one_request() -> None:
    bench = Bench(2)
    for _ in range(20):
        request_id, to = bench.send()
        bench.end(request_id, Outcome.FAILED if to == 0 else Outcome.DONE)
    assert bench.fleet.standing("pod-0", bench.now) is Standing.EJECTED
    bench.now += 2
    bench.report()
    assert [bench.send()[1] for _ in range(10)].count(0) == 1


def test_a_pod_that_refused_for_its_full_queue_is_left_alone_for_as_long_as_it_asked() -> None:
    bench = Bench(2)
    request_id, to = bench.send()
    bench.fleet.ended(request_id, bench.now, Outcome.NOT_STARTED, retry_after=2.0)
    assert all(bench.send()[1] != to for _ in range(10))
    bench.now += 2
    bench.report()
    assert to in {bench.send()[1] for _ in range(20)}


def test_a_subset_is_honoured_and_an_empty_one_leaves_nobody() -> None:
    bench = Bench(4)
    assert bench.pick(subset=frozenset()) is None
    assert bench.pick(subset=frozenset({"10.9.9.9:8000"})) is None
    for _ in range(8):
        pick = bench.pick(subset=frozenset({"10.0.0.1:8000", "10.0.0.3:8000"}))
        assert pick is not None
        assert {e.uid for e in pick.order} == {"pod-1", "pod-3"}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_list_names_every_pod_once_and_equal_news_give_equal_picks(policy: type) -> None:
    one, two = Bench(5, policy()), Bench(5, policy())
    for number in range(50):
        wanted = Wanted(f"r{number}", tuple(bytes([number % 7, step]) for step in range(5)), key=bytes([number % 7]))
        first, second = one.pick(wanted), two.pick(wanted)
        assert first == second
        assert first is not None
        assert sorted(e.uid for e in first.order) == [f"pod-{n}" for n in range(5)]
