"""Demand, growth, supply and capacity from pods and samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo_operator.autoscale import Estimate, Held, Learned, Pod, PodSample, PodState, Policy, estimate
from octavo_operator.autoscale.estimate import growth, queued_blocks, starting_credit
from octavo_operator.autoscale.learn import blocks_per_pod, learn, percentile
from octavo_operator.autoscale.types import Saturation

from .fleet import BLOCKS, POLICY, T0, moment, pod, sample

KNOWN = Learned(total_blocks=BLOCKS, cold_start_p50=60.0, cold_start_p90=90.0)


def at_t0(pods: list[Pod], samples: list[PodSample], held: Held = Held(), learned: Learned = KNOWN) -> Estimate:
    return estimate(POLICY, pods, {one.uid: one for one in samples}, held, learned, [], T0)


def test_demand_is_what_runs_what_queues_and_what_is_held() -> None:
    a, b = pod("a"), pod("b")
    samples = [
        sample(a, 400, cached=500, running=7),
        sample(b, 100, running=2, waiting=3, tokens=320, oldest_millis=900),
    ]
    result = at_t0([a, b], samples, Held(4, 50))
    assert result.demand_blocks == 400 + 100 + (320 + 3 * 15) // 16 + 50
    assert (result.running_requests, result.queued_requests, result.held_requests) == (9, 3, 4)
    assert (result.oldest_queue_millis, result.waiting_requests, result.requests) == (900, 7, 16)


@pytest.mark.parametrize(
    ("requests", "tokens", "blocks"), [(0, 0, 0), (1, 1, 1), (1, 16, 1), (1, 17, 2), (2, 2, 2), (3, 320, 22)]
)
def test_queued_prompts_round_up_one_by_one(requests: int, tokens: int, blocks: int) -> None:
    assert queued_blocks(requests, tokens, 16) == blocks


def test_pods_are_told_apart() -> None:
    pods = [
        pod("ready"),
        pod("cordoned", cordoned=True, cordoned_at=T0),
        pod("starting", PodState.STARTING, created_at=T0),
        pod("given-up", PodState.STARTING, created_at=T0, cordoned=True),
        pod("nowhere", PodState.UNSCHEDULABLE),
        pod("leaving", PodState.TERMINATING),
        pod("evicted", PodState.ENDED),
    ]
    result = at_t0(pods, [sample(one, 100, running=3) for one in pods])
    assert (result.ready_pods, result.reporting_pods, result.cordoned_pods) == (1, 1, 2)
    assert (result.starting_pods, result.starting_credit, result.unschedulable_pods) == (1, 1.0, 1)
    assert (result.demand_blocks, result.running_requests) == (100, 3)
    assert result.other_requests == 12, "a cordoned or unready pod's requests still count against idleness"


def test_a_pod_without_a_node_is_passed_over_once_a_later_one_has_one() -> None:
    old, young = (
        pod(name, PodState.UNSCHEDULABLE, created_at=T0 - s, scheduled=False) for name, s in (("o", 90), ("y", 20))
    )

    def told(*others: Pod) -> tuple[int, int, float, float]:
        result = at_t0([pod("a"), old, young, *others], [])
        return result.unschedulable_pods, result.passed_over_pods, result.unplaced_seconds, result.starting_credit

    assert told() == (2, 0, 20.0, 0.0)
    assert told(pod("b", PodState.STARTING, created_at=T0 - 50)) == (2, 1, 20.0, 1.0)
    assert told(pod("b", PodState.STARTING, created_at=T0 - 20)) == (2, 1, 20.0, 1.0), "of one second: unknown"
    assert told(pod("b", PodState.STARTING, created_at=T0 - 5)) == (2, 2, 0.0, 1.0)
    assert told(pod("b", PodState.STARTING, created_at=T0 - 5, scheduled=False)) == (2, 0, 20.0, 1.0)


@pytest.mark.parametrize(("reporting", "expected"), [(4, 400), (3, 400), (2, 400), (1, 400), (0, 0)])
def test_silent_pods_are_taken_to_be_like_the_others(reporting: int, expected: int) -> None:
    pods = [pod(str(number)) for number in range(4)]
    result = at_t0(pods, [sample(one, 100) for one in pods[:reporting]])
    assert (result.demand_blocks, result.reporting_pods) == (expected, reporting)
    assert result.complete is (reporting == 4)
    assert result.metrics_available is (reporting >= 2)


def test_a_half_valid_sample_gives_its_queue_and_is_not_complete() -> None:
    a = pod("a")
    result = at_t0([a], [sample(a, None, running=3, waiting=9)])
    assert (result.queued_requests, result.queue_pods, result.reporting_pods, result.complete) == (9, 1, 0, False)


# --- Growth -----------------------------------------------------------------------------------------------------
def loads(*blocks: int) -> list[Estimate]:
    return [moment(T0 + 10 * index, demand_blocks=value) for index, value in enumerate(blocks)]


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (loads(100, 200, 300, 400), 400),  # 10 blocks/s over 60 s: more than the demand itself, which is the cap
        (loads(400, 430, 460, 490), 180),  # 3 blocks/s
        (loads(400, 400, 400, 900), 0),  # one jump is no trend
        (loads(400, 408, 392, 408), 0),  # noise of 2 %
        (loads(900, 600, 300, 100), 0),
        (loads(0, 0, 0, 0), 0),
        (loads(400, 490), 0),  # too few moments
    ],
)
def test_growth_is_a_trend_over_the_cold_start(points: list[Estimate], expected: int) -> None:
    assert growth(points, 60.0, points[-1].demand_blocks) == expected


def test_growth_needs_a_measured_cold_start_and_complete_data() -> None:
    a, before = pod("a"), [replace(point, at=point.at - 30) for point in loads(400, 430, 460)]
    whole, half = {a.uid: sample(a, 490)}, {a.uid: sample(a, 490, waiting=None)}
    assert estimate(POLICY, [a], whole, Held(), KNOWN, before, T0).growth_blocks == 180
    assert estimate(POLICY, [a], whole, Held(), Learned(BLOCKS), before, T0).growth_blocks == 0
    assert estimate(POLICY, [a], half, Held(), KNOWN, before, T0).growth_blocks == 0


def test_taking_a_cordon_back_is_no_growth() -> None:
    a, b = pod("a"), pod("b", cordoned=True, cordoned_at=T0 - 90)
    samples = {one.uid: sample(one, 400) for one in (a, b)}
    points: list[Estimate] = []
    for index in range(4):
        now = T0 + 10 * index
        pods = [a, b if index < 2 else replace(b, cordoned=False)]
        points.append(estimate(POLICY, pods, samples, Held(), KNOWN, points, now))
    assert [point.demand_blocks for point in points] == [400, 400, 800, 800]
    assert all(point.growth_blocks == 0 for point in points)


# --- Supply -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("age", "credit"), [(0, 1), (90, 1), (135, 0.5), (180, 0), (4000, 0)])
def test_the_credit_of_a_starting_pod_ages_away(age: int, credit: float) -> None:
    assert starting_credit(pod("a", PodState.STARTING, created_at=T0 - age), POLICY, KNOWN, T0) == credit


def test_without_an_observed_start_the_credit_ends_with_the_startup_time_out() -> None:
    policy = replace(POLICY, startup_timeout_seconds=600)
    credits = [
        starting_credit(pod("a", PodState.STARTING, created_at=T0 - age), policy, Learned(), T0)
        for age in (300, 450, 600)
    ]
    assert credits == [1, 0.5, 0]


def test_a_pod_that_lost_its_readiness_ages_from_then() -> None:
    flapped = pod("a", PodState.STARTING, not_ready_since=T0 - 10)
    assert starting_credit(flapped, POLICY, KNOWN, T0) == 1


# --- Capacity per pod -------------------------------------------------------------------------------------------
def learn_from(*scrapes: PodSample, learned: Learned = Learned(), policy: Policy = POLICY) -> Learned:
    a = pod("a")
    *recent, last = scrapes
    return learn(learned, policy, [a], {a.uid: last}, [{a.uid: one} for one in recent], (), last.at)


def full(active: int, *, waiting: int = 40, at: float = T0) -> PodSample:
    return sample("uid-a", active, running=12, waiting=waiting, at=at)


def test_requests_that_wait_beside_free_blocks_show_what_compute_keeps_up_with() -> None:
    learned = learn_from(full(280), full(310), full(300))
    assert blocks_per_pod(learned) == 310


@pytest.mark.parametrize(
    "scrapes",
    [
        (full(300), full(300)),  # for too short a time
        (full(300), full(300, waiting=2), full(300)),
        (full(900), full(900), full(900)),  # the pool is what is full
    ],
)
def test_a_burst_or_a_full_pool_says_nothing_about_compute(scrapes: tuple[PodSample, ...]) -> None:
    assert blocks_per_pod(learn_from(*scrapes)) == BLOCKS


def test_compute_capacity_is_refuted_expires_and_has_a_floor() -> None:
    learned = learn_from(full(300), full(300), full(300))
    assert blocks_per_pod(learn_from(full(500, waiting=0), learned=learned)) == BLOCKS
    assert blocks_per_pod(learn_from(full(200, waiting=0), learned=learned)) == 300
    assert blocks_per_pod(learn_from(full(200, waiting=0, at=T0 + 601), learned=learned)) == BLOCKS
    assert blocks_per_pod(replace(learned, saturations=(Saturation(T0, 3),))) == BLOCKS // 10


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile([30, 10, 20, 90], percent) for percent in (50, 90)] == [20, 90]
    assert percentile([7], 90) == 7
