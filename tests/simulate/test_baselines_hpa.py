"""Kubernetes' HPA, worked by hand from operators.md §2.2; KEDA's control law and its 0 <-> 1, from §2.3 and §2.8."""

from __future__ import annotations

import pytest

from octavo_operator.simulate.baselines.hpa import (
    Behavior,
    Controller,
    Direction,
    HpaKv,
    HpaQueue,
    Rule,
    external_average,
    external_value,
    pods_metric,
)
from octavo_operator.simulate.baselines.keda import KedaSlo, SloConfig, law
from octavo_operator.simulate.policy import Bounds, Wanted

from .baselines_fleet import fleet, last, metrics

# (values of the pods in thousandths, missing, unready, current, wanted); the target is 800
PODS_METRIC = {
    "at the target": ([800] * 4, 0, 0, 4, 4),
    "ceil(ready x ratio): 3 x 1.2": ([960] * 3, 0, 0, 3, 4),
    "tolerance 0.1: 1.0875 is close enough": ([870] * 4, 0, 0, 4, 4),
    "just above it: 2 x 1.1125": ([890] * 2, 0, 0, 2, 3),
    "just below it: 10 x 0.875": ([700] * 10, 0, 0, 10, 9),
    "growing, missing pods count 0: (2 + 2 + 0 + 0) / 4": ([1600] * 2, 2, 0, 4, 4),
    "shrinking, missing pods count 100 %: (0.5 + 0.5 + 1 + 1) / 4": ([400] * 2, 2, 0, 4, 3),
    "growing, unready pods count 0: 2 x 2 / 3 = 1.33": ([1600] * 2, 0, 1, 3, 4),
    "shrinking, unready pods are not counted: 4 x 0.5": ([400] * 4, 0, 1, 5, 2),
    "the corrected ratio changes direction: 1.2 / 2 = 0.6": ([960], 1, 0, 2, 2),
    "no pod has the metric": ([], 3, 0, 3, None),
}


@pytest.mark.parametrize(("values", "missing", "unready", "current", "wanted"), PODS_METRIC.values(), ids=PODS_METRIC)
def test_pods_metric(values: list[int], missing: int, unready: int, current: int, wanted: int | None) -> None:
    assert pods_metric(800, current, values, missing, unready) == wanted


def test_a_desired_count_as_value_has_one_as_its_only_fixed_point() -> None:
    """§2.2: desired 3 with 3 ready gives 9, desired 1 with 3 ready stays 3; AverageValue 1 passes it through."""
    assert external_value(1000, 3, 3, 3000) == 9
    assert external_value(1000, 3, 3, 1000) == 3
    assert external_average(1000, 3, 9000) == 9
    assert external_average(1000, 9, 3000) == 3
    assert external_average(1000, 10, 11_000) == 10, "the tolerance of 10 % swallows one more"


def test_growth_by_default_is_the_larger_of_twice_and_four_more_in_15_s() -> None:
    hpa = Controller(Bounds(1, 100))
    assert hpa.apply(0, 1, 50).replicas == 5
    assert hpa.apply(5, 5, 50) == Wanted(5, "Limited"), "the period's pods are used up"
    assert hpa.apply(15, 5, 50).replicas == 10
    assert hpa.apply(30, 10, 12).replicas == 12


def test_shrinking_follows_the_largest_recommendation_of_300_s() -> None:
    hpa = Controller(Bounds(1, 100))
    wanted = [hpa.apply(at, 10, 2 if at != 60 else 7).replicas for at in range(0, 361, 15)]
    assert wanted[: 300 // 15] == [10] * 20, "the count that the controller found is its first recommendation"
    assert wanted[300 // 15 : 360 // 15] == [7] * 4
    assert wanted[360 // 15] == 2, "then all at once: 100 % in 15 s"


def test_rate_rules_and_windows_of_a_behaviour() -> None:
    behavior = Behavior(Direction(30, (Rule("Pods", 10, 60),)), Direction(0, (Rule("Percent", 50, 60),)))
    hpa = Controller(Bounds(1, 100), behavior)
    assert [hpa.apply(at, 8, 20).replicas for at in (0, 15, 30)] == [8, 8, 18], "up window: the least of 30 s"
    assert hpa.apply(45, 18, 1).replicas == 4, "half of the 8 that the period began with"


def test_hpa_outside_its_bounds_and_without_metrics() -> None:
    hpa = Controller(Bounds(2, 6))
    assert hpa.apply(0, 9, 9) == Wanted(6, "OutsideBounds")
    assert hpa.hold(15, 6, "NoMetrics") == Wanted(6, "NoMetrics")


def test_hpa_on_kv_counts_loading_pods_as_missing_and_pending_ones_as_unready() -> None:
    full = [metrics(1.0), metrics(1.0)]
    assert HpaKv().desired(fleet(0, full)).replicas == 3
    assert HpaKv().desired(fleet(0, full, starting=1)).replicas == 3, "(1 + 1 + 0) / 3 / 0.8 = 0.83: other direction"
    assert HpaKv().desired(fleet(0, full, unschedulable=1)).replicas == 3
    assert HpaKv().desired(fleet(0, [None, None])) == Wanted(2, "NoMetrics")


def test_hpa_on_the_queue() -> None:
    assert HpaQueue().desired(fleet(0, [metrics(waiting=30)])).replicas == 5, "wants 6; + 4 pods in 15 s"
    assert HpaQueue().desired(fleet(0, [metrics(waiting=8), metrics(waiting=4)])).replicas == 3
    assert HpaQueue().desired(fleet(0, [metrics(waiting=5), metrics(waiting=5)])).replicas == 2
    hpa = HpaQueue(bounds=Bounds(0, 10))
    calm = [fleet(at, [metrics(at=at)] * 4) for at in range(0, 316, 15)]
    assert last(hpa, calm[:-2]).replicas == 4
    assert last(hpa, calm[-2:]) == Wanted(1, "Limited"), "an empty queue wants 0, whatever runs"


def test_a_restarted_hpa_does_not_shrink_before_its_window_is_full() -> None:
    hpa = HpaKv()
    last(hpa, [fleet(at, [metrics(0.1)] * 4) for at in range(0, 290, 15)])
    again = hpa.restarted()
    assert last(again, [fleet(at, [metrics(0.1)] * 4) for at in range(300, 590, 15)]).replicas == 4


# --- KEDA ---------------------------------------------------------------------------------------------------------
# (saturation, provisioned, ready, wanted)
LAW = {
    "in the band": (0.45, 4, 4, 4),
    "at the upper threshold": (0.55, 4, 4, 4),
    "twice the threshold: 4 + ceil(4 x 1)": (1.10, 4, 4, 8),
    "clamped: 3 + ceil(3 x 2.64)": (2.0, 3, 3, 11),
    "credit for pods in flight: 1.1 x 4/8 is the threshold": (1.10, 8, 4, 8),
    "half the lower threshold: 4 - floor(4 x 0.5)": (0.20, 4, 4, 2),
    "shrinking has no credit": (0.20, 4, 2, 2),
    "just below: 4 - floor(0.1)": (0.39, 4, 4, 4),
    "no traffic": (0.0, 4, 4, 0),
}


@pytest.mark.parametrize(("saturation", "provisioned", "ready", "wanted"), LAW.values(), ids=LAW)
def test_slo_law(saturation: float, provisioned: int, ready: int, wanted: int) -> None:
    assert law(SloConfig(), saturation, provisioned, ready) == wanted


def test_keda_grows_when_the_p90_ttft_nears_its_slo_after_the_window_of_30_s() -> None:
    """§2.8: a p90 of 2.35 s (of the bucket up to 2.5) is 0.78 of 3 s; the mean of 45 s is above 0.55 from 45 s on,
    and the HPA takes the least of 30 s.
    """
    keda = KedaSlo(bounds=Bounds(1, 20))
    samples = [fleet(at, [metrics(at=at, ttft=[2.5] * (at + 1))] * 2, in_flight=4) for at in range(0, 61, 15)]
    assert [keda.desired(sample).replicas for sample in samples] == [2, 2, 2, 2, 3]


def test_keda_smooths_and_clamps_the_signal() -> None:
    keda = KedaSlo()
    for at in (0, 15):
        keda.desired(fleet(at, [metrics(at=at, ttft=[60.0] * (at + 1))], in_flight=1))
    sample = fleet(30, [metrics(at=30, ttft=[60.0] * 31)], in_flight=1)
    keda.desired(sample)
    assert keda.saturation(sample) == pytest.approx((0 + 2 + 2) / 3), "one scrape has no rate yet"


def test_keda_takes_the_last_pod_after_the_cooldown_and_polls_for_the_first() -> None:
    """§2.3: polling 30 s, cool-down 300 s since last active; the HPA never goes below 1."""
    keda = KedaSlo(bounds=Bounds(0, 10))
    assert last(keda, [fleet(at, [metrics(at=at)]) for at in range(0, 300, 15)]).replicas == 1
    assert keda.desired(fleet(300, [metrics(at=300)])) == Wanted(0, "Cooldown")
    assert keda.desired(fleet(315, [], held=1)) == Wanted(0, "Inactive"), "not polled yet"
    assert keda.desired(fleet(330, [], held=1)) == Wanted(1, "Activated")


def test_keda_shrinks_one_pod_in_120_s() -> None:
    keda = KedaSlo(bounds=Bounds(1, 10))
    counts, replicas = {}, 4
    for at in range(0, 421, 15):
        replicas = keda.desired(fleet(at, [metrics(at=at)] * replicas, in_flight=1)).replicas
        counts[at] = replicas
    assert counts[165] == 4
    assert counts[180] == 3
    assert counts[285] == 3
    assert counts[300] == 2


def test_keda_holds_when_the_query_fails() -> None:
    keda = KedaSlo(bounds=Bounds(1, 10))
    assert last(keda, [fleet(at, [None] * 4) for at in range(0, 900, 15)]) == Wanted(4, "NoMetrics")
