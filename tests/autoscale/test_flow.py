"""How much works at once, from the flow of requests: queues of any length over the same traffic ask for the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo_operator.autoscale import Estimate, Held, Learned, Pod, PodSample, PodState, estimate
from octavo_operator.autoscale.flow import Flow, at_work, measure, to_clear
from octavo_operator.autoscale.types import Scrape

from .fleet import BLOCKS, POLICY, T0, moment, pod, sample

KNOWN = Learned(total_blocks=BLOCKS, cold_start_p50=120.0, cold_start_p90=150.0)


def ended(of: PodSample, finished: int | None) -> PodSample:
    return of._replace(finished=finished)


class Saturated:
    """One pod that runs 10 requests of 80 blocks and ends 2.5 a second, while `arrivals` come every second."""

    def __init__(self, arrivals: float, *, waited: int = 0, finished: int = 1000) -> None:
        self.arrivals, self.waited, self.finished = arrivals, waited, finished
        self.pod = pod("a")
        self.scrapes: list[dict[str, Scrape]] = []
        self.points: list[Estimate] = []

    def period(self, *others: Pod, lost: bool = False) -> Estimate:
        now = T0 + 10 * len(self.scrapes)
        age = 10 * len(self.scrapes)
        waiting = self.waited + round((self.arrivals - 2.5) * age)
        one = sample(
            self.pod, 800, running=10, waiting=waiting, tokens=waiting * 1200, oldest_millis=waiting * 400, at=now
        )
        one = ended(one, self.finished + round(2.5 * age))
        samples = {} if lost else {one.uid: one}
        point = estimate(POLICY, [self.pod, *others], samples, Held(), KNOWN, self.points, now, self.scrapes)
        self.points.append(point)
        self.scrapes.append(dict(samples))
        return point

    def run(self, seconds: int) -> Estimate:
        return [self.period() for _ in range(seconds // 10 + 1)][-1]


def test_the_flow_is_arrivals_ends_and_the_time_between() -> None:
    fleet = Saturated(arrivals=5.0)
    now = fleet.run(60)
    flow = measure(fleet.scrapes[:-1], {"uid-a": fleet.scrapes[-1]["uid-a"]}, fleet.points[:-1], now)  # type: ignore[dict-item]
    assert flow == Flow(arrivals=5.0, finished=2.5, seconds=4.0)
    assert at_work(flow) == 20


@pytest.mark.parametrize("waited", [10, 300, 3000])
def test_the_length_of_a_queue_is_no_demand(waited: int) -> None:
    """5 requests a second that each work 4 s are 20 at once, of 80 blocks or so, however many wait for them."""
    now = Saturated(arrivals=5.0, waited=waited).run(60)
    assert 20 * 75 <= now.demand_blocks <= 20 * 85
    assert now.growth_blocks <= now.demand_blocks
    assert now.pressing_requests is not None
    assert now.pressing_requests <= 2 * 20


def test_what_waits_is_cleared_in_a_quarter_of_a_cold_start() -> None:
    flow, now = Flow(5.0, 5.0, 4.0), moment(queued_requests=300, oldest_queue_millis=60_000)
    assert to_clear(flow, now, pod_requests=12, starts=[], cold_start=120.0) == 300 * 4 / 30
    assert to_clear(flow, now, pod_requests=12, starts=[], cold_start=0.0) == 300 * 4 / 20


def test_pods_that_start_already_are_counted_against_the_backlog() -> None:
    flow, now = Flow(5.0, 2.5, 4.0), moment(queued_requests=60, oldest_queue_millis=60_000)

    def more(*starts: float) -> float:
        return to_clear(flow, now, pod_requests=12, starts=starts, cold_start=120.0)

    assert more() == (60 + 2.5 * 120) * 4 / 30
    assert more(120.0) == more(), "one that is ready when a new one would be clears nothing before it"
    assert more(60.0) == (60 + 2.5 * 120 - 60 * 12 / 4) * 4 / 30
    assert more(0.0, 0.0, 0.0) == 0


def test_a_queue_that_stands_does_not_grow_the_demand_with_its_age() -> None:
    fleet = Saturated(arrivals=5.0)
    fleet.run(60)
    starting = [pod(str(n), PodState.STARTING, created_at=T0 + 60) for n in range(2)]
    needs = [(p := fleet.period(*starting)).demand_blocks + p.growth_blocks for _ in range(12)]
    assert max(needs) <= 1.05 * needs[0]


def test_a_lost_scrape_does_not_take_the_queue_for_the_demand() -> None:
    fleet = Saturated(arrivals=5.0, waited=2000)
    before = fleet.run(60)
    other = pod("b")
    after = fleet.period(other)
    assert not after.complete
    assert (after.demand_blocks, after.pressing_requests) == (before.demand_blocks, before.pressing_requests)


@pytest.mark.parametrize("finished", [None, 0])
def test_without_a_flow_the_queue_is_all_that_is_known(finished: int | None) -> None:
    a = pod("a")
    waiting = sample(a, 800, running=10, waiting=100, tokens=120_000, oldest_millis=9000)
    point = estimate(POLICY, [a], {a.uid: ended(waiting, finished)}, Held(), KNOWN, [], T0)
    assert (point.demand_blocks, point.pressing_requests) == (800 + (120_000 + 1500) // 16, None)


def test_a_counter_that_began_anew_counts_from_zero() -> None:
    a = pod("a")
    scrapes = [{a.uid: ended(sample(a, 800, running=10, at=T0 + 10 * n), c)} for n, c in enumerate((990, 1000, 5, 30))]
    points = [moment(T0 + 10 * n, running_requests=10) for n in range(3)]
    now = replace(points[0], at=T0 + 30)
    flow = measure(scrapes[:-1], scrapes[-1], points, now)
    assert flow is not None
    assert flow.finished == pytest.approx((10 + 5 + 25) / 30)
