"""The fixed count, the oracle (operators.md §2.11), the windows the baselines share, and what all have in common."""

from __future__ import annotations

import math

import pytest

from octavo_operator.simulate.baselines.aibrix import Apa
from octavo_operator.simulate.baselines.bounds import Arrival, FixedN, LoadCurve, Oracle, PodCapacity
from octavo_operator.simulate.baselines.dynamo import Dynamo
from octavo_operator.simulate.baselines.hpa import HpaKv, HpaQueue
from octavo_operator.simulate.baselines.keda import KedaSlo
from octavo_operator.simulate.baselines.knative import Kpa
from octavo_operator.simulate.baselines.kubeai import KubeAi
from octavo_operator.simulate.baselines.series import Scrapes, Window, quantile
from octavo_operator.simulate.baselines.wva import WvaV1
from octavo_operator.simulate.baselines.wva2 import WvaV2
from octavo_operator.simulate.policy import Bounds, PodMetrics, Policy, Wanted

from .baselines_fleet import fleet, metrics

STEP = LoadCurve([(100.0, 1.6), (200.0, 3.2), (300.0, 0.8), (340.0, 2.4), (500.0, 0.0)])
"""Pods' worth; at 0.8 of a pod: 2, 4, 1, 3, 0 pods."""


def test_fixed() -> None:
    assert FixedN(5).desired(fleet(0, [])) == Wanted(5, "Fixed")


@pytest.mark.parametrize(
    ("at", "pods"),
    [(0, 0), (68, 0), (69, 2), (168, 2), (169, 4), (200, 4), (299, 4), (301, 1), (309, 3), (340, 3), (500, 0)],
)
def test_oracle_asks_one_cold_start_ahead(at: float, pods: int) -> None:
    """A cold start of 30 s and a look of 1 s."""
    assert Oracle(STEP, 30).desired(fleet(at, [])).replicas == pods


def test_oracle_keeps_over_a_gap_what_it_would_need_again_within_a_cold_start() -> None:
    assert Oracle(STEP, 120).schedule([180, 250, 301, 350]) == [4, 4, 3, 3]
    assert Oracle(STEP, 30).schedule([180, 250, 301, 350]) == [4, 4, 1, 3]


def test_oracle_trades_pods_for_utilisation_and_for_waiting() -> None:
    assert Oracle(STEP, 30, utilization=1.6).schedule([150, 250]) == [1, 2]
    assert Oracle(STEP, 30, Bounds(1, 3)).schedule([0, 250]) == [1, 3]
    assert STEP.smoothed(100).peak(100, 199) == pytest.approx(1.6)
    assert STEP.smoothed(200).peak(200, 399) == pytest.approx((100 * 3.2 + 40 * 0.8 + 60 * 2.4) / 200)


def test_load_curve_of_a_trace_follows_the_scarcest_share() -> None:
    capacity = PodCapacity(
        blocks=100, block_size=16, max_sequences=10, prefill_tokens_per_second=1000, token_seconds=0.1
    )
    short = [Arrival(0, 10, 10)] * 5
    assert LoadCurve.of(short, capacity).peak(0, 0.5) == pytest.approx(0.5), "five of ten sequences"
    long = [Arrival(0, 800, 1000), Arrival(1, 800, 1000)]
    assert LoadCurve.of(long, capacity).peak(0, 2) == pytest.approx(2 * 1300 / 1600), "blocks"
    prompts = [Arrival(0, 1000, 1), Arrival(0, 1000, 1)]
    assert LoadCurve.of(prompts, capacity).peak(0, 0.5) == pytest.approx(2 / 1.1), "prefill"
    assert LoadCurve.of(prompts, capacity).peak(1.2, 9) == pytest.approx(0.0)
    assert LoadCurve.of([], capacity).smoothed(60).peak(0, 100) == 0.0


def test_windows() -> None:
    window = Window(60)
    for at in range(0, 100, 10):
        window.add(at, at)
    assert window.values(90) == [40, 50, 60, 70, 80, 90]
    assert window.mean(90, 20) == 85
    assert window.mean(400) is None


def test_quantile_is_linear_within_its_bucket_and_never_above_the_last_bound() -> None:
    assert quantile(0.9, (1.0, 2.0), [8, 10, 10]) == pytest.approx(1.5)
    assert quantile(0.9, (1.0, 2.0), [0, 0, 10]) == 2.0
    assert math.isnan(quantile(0.9, (1.0, 2.0), [0, 0, 0]))


def test_an_increase_needs_two_scrapes_and_counts_each_pod_by_itself() -> None:
    scrapes = Scrapes(60, 15)
    scrapes.add(fleet(0, [metrics(at=0, ended=5), metrics(at=0, ended=100)]))
    assert scrapes.increase(0, 60, lambda scrape: scrape.requests_total) == 0
    scrapes.add(fleet(15, [metrics(at=15, ended=8)]))
    assert scrapes.increase(15, 60, lambda scrape: scrape.requests_total) == 3


def loaded(at: float, share: float, ttft: list[float]) -> PodMetrics:
    """A pod with that share of a full load, and more than it can hold above 1."""
    waiting = int(9 * share)
    return metrics(min(1.0, share), at=at, running=99, waiting=waiting, tokens=900 * waiting, ttft=ttft)


EVERY = [Kpa, HpaKv, HpaQueue, KubeAi, Apa, WvaV1, WvaV2, Dynamo, KedaSlo]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_equal_samples_give_equal_answers_within_the_bounds(kind: type[Policy]) -> None:
    """A load that rises and falls, with lost scrapes and pods that start: two policies agree, and stay in 1 … 6."""

    def run() -> list[Wanted]:
        policy = kind(bounds=Bounds(1, 6))  # type: ignore[call-arg]
        answers, replicas, at, ttft = [], 1, 0.0, []
        while at < 1800:
            share = max(0.0, 1.2 * math.sin(at / 300))
            if at % 15 == 0:
                ttft.append(0.3 + 4 * share)
            ready = max(1, replicas - 1) if at % 120 < 60 else replicas
            scraped = [None if (at + n) % 7 == 0 else loaded(at, share, ttft) for n in range(ready)]
            sample = fleet(at, scraped, starting=replicas - ready, in_flight=int(400 * share))
            answers.append(policy.desired(sample))
            replicas = answers[-1].replicas
            at += policy.period_seconds
        return answers

    first = run()
    assert first == run()
    assert {wanted.replicas for wanted in first} <= set(range(1, 7))
    assert len({wanted.replicas for wanted in first}) > 1, "it does scale"


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_no_baseline_shrinks_on_no_data_at_all(kind: type[Policy]) -> None:
    """§2.10, metrics missing: hold, for all of them (KubeAI's come from its proxies, which still count)."""
    policy = kind(bounds=Bounds(1, 6))  # type: ignore[call-arg]
    at, stored = 0.0, []
    while at < 900:
        silent = at >= 300
        scraped = [None if silent else metrics(0.5, at=at, running=60)] * 3
        stored.append(policy.desired(fleet(at, scraped, replicas=3, in_flight=180)).replicas)
        at += policy.period_seconds
    calm = stored[int(300 / policy.period_seconds) - 1]
    assert min(stored[int(300 / policy.period_seconds) :]) >= min(calm, 3)
