"""Autoscalers on requests: Knative's KPA (operators.md §2.1) and KubeAI (§2.4), worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from octavo_operator.simulate.baselines.knative import Kpa, KpaConfig
from octavo_operator.simulate.baselines.kubeai import KubeAi
from octavo_operator.simulate.policy import Bounds, FleetSample, Wanted

from .baselines_fleet import fleet, last, metrics


def busy(at: float, requests: Sequence[int], **fields: int) -> FleetSample:
    """Ready pods that run so many requests each."""
    return fleet(at, [metrics(at=at, running=running) for running in requests], **fields)  # type: ignore[arg-type]


# --- KPA ----------------------------------------------------------------------------------------------------------
# requests on each ready pod, held, wanted; constant from the start
STEADY = {
    "target 100 x 70 %: 70 is one pod": ([70], 0, Wanted(1, "Stable")),
    "ceil(71 / 70)": ([71], 0, Wanted(2, "Panic")),
    "350 on one pod: ceil(350 / 70), and 5 / 1 >= 2 is panic": ([350], 0, Wanted(5, "Panic")),
    "the total counts, not the average": ([40, 40, 40], 0, Wanted(3, "Panic")),
    "what the activator holds counts": ([0], 141, Wanted(3, "Panic")),
    "from zero: one pod for 3 held": ([], 3, Wanted(1, "Stable")),
    "from zero: the burst decides, 1000 a pod at most": ([], 700, Wanted(10, "Panic")),
}


@pytest.mark.parametrize(("requests", "held", "wanted"), STEADY.values(), ids=STEADY)
def test_kpa_steady(requests: list[int], held: int, wanted: Wanted) -> None:
    assert last(Kpa(), [busy(at, requests, held=held) for at in range(0, 20, 2)]) == wanted


def test_kpa_restarted_with_more_than_one_pod_starts_in_panic_and_then_at_most_halves() -> None:
    """§2.1: no blind scale-down after a restart; the panic ends when a stable window passed; floor(ready / 2)."""
    kpa = Kpa()
    assert last(kpa, [busy(at, [7] * 10) for at in range(0, 61, 2)]) == Wanted(10, "Panic")
    assert kpa.desired(busy(62, [7] * 10)) == Wanted(5, "Stable")
    assert last(kpa.restarted(), [busy(at, [7] * 10) for at in range(64, 100, 2)]) == Wanted(10, "Panic")


def test_kpa_panics_on_six_seconds_and_only_grows_while_it_does() -> None:
    kpa = Kpa()
    last(kpa, [busy(at, [70]) for at in range(0, 60, 2)])
    spike = [kpa.desired(busy(at, [350])) for at in range(60, 66, 2)]
    assert spike == [Wanted(3, "Panic"), Wanted(4, "Panic"), Wanted(5, "Panic")], "(70 + 70 + 350) / 3 / 70 …"
    after = [kpa.desired(busy(at, [14] * 5)) for at in range(66, 124, 2)]
    assert {wanted.replicas for wanted in after} == {5}, "never below what the panic reached"
    assert kpa.desired(busy(126, [14] * 5)).reason == "Stable"


def test_kpa_excess_burst_capacity() -> None:
    """§2.1: floor(ready x 100 - 200 - panic concurrency)."""
    kpa = Kpa()
    kpa.desired(busy(0, [20] * 5))
    assert kpa.excess_burst_capacity == 200
    kpa = Kpa()
    kpa.desired(busy(0, [50] * 2))
    assert kpa.excess_burst_capacity == -100, "negative: the activator stays in the path and buffers"


def test_kpa_keeps_the_last_pod_for_the_window_and_the_grace() -> None:
    kpa = Kpa()
    kpa.desired(busy(0, [1]))
    wanted = {at: kpa.desired(busy(at, [0])) for at in range(2, 100, 2)}
    assert wanted[58].replicas == 1
    assert wanted[60] == Wanted(1, "ZeroGrace"), "the request has left the stable window"
    assert wanted[88] == Wanted(1, "ZeroGrace")
    assert wanted[90] == Wanted(0, "Zero")


def test_kpa_without_data_holds_and_takes_silent_pods_to_be_like_the_others() -> None:
    assert Kpa().desired(fleet(0, [None] * 3)) == Wanted(3, "NoData")
    assert Kpa().desired(fleet(0, [metrics(running=140), None])).replicas == 4
    assert Kpa(KpaConfig(target=10), Bounds(0, 3)).desired(busy(0, [70])).replicas == 3


# --- KubeAI -------------------------------------------------------------------------------------------------------
def active(at: float, requests: int, replicas: int) -> FleetSample:
    """So many active requests at the proxies."""
    return fleet(at, [metrics(at=at)] * replicas, in_flight=requests)


def test_kubeai_follows_a_step_over_ten_minutes() -> None:
    """§2.4: the mean of 60 zero-seeded samples; a step from 0 to ten times the target takes minutes."""
    kubeai, replicas, counts = KubeAi(), 1, []
    for k in range(1, 61):
        replicas = kubeai.desired(active(10 * k, 1000, replicas)).replicas
        counts.append(replicas)
    assert (counts[5], counts[6], counts[11], counts[12], counts[29], counts[53], counts[54]) == (1, 2, 2, 3, 5, 9, 10)
    assert counts[59] == 10


@pytest.mark.parametrize(
    ("stored", "requests", "wanted"),
    [(100.0, 100, 1), (100.0, 160, 2), (250.0, 250, 3), (300.0, 0, 3), (50.0, 0, 1)],
    ids=["at the target", "101 is above one", "ceil(2.5)", "295 is still 3", "49 is still 1"],
)
def test_kubeai_rounds_the_mean_up(stored: float, requests: int, wanted: int) -> None:
    assert KubeAi(stored_mean=stored).desired(active(0, requests, wanted)).replicas == wanted


def test_kubeai_shrinks_after_ceil_30_s_by_10_s_lower_results_in_a_row() -> None:
    kubeai = KubeAi(stored_mean=50.0)
    wanted = [kubeai.desired(active(10 * k, 50, 3)) for k in range(4)]
    assert wanted == [Wanted(3, "ScaleDownDelay")] * 3 + [Wanted(1, "MovingAverage")]


def test_kubeai_counts_afresh_after_a_result_that_is_not_lower() -> None:
    kubeai = KubeAi(stored_mean=100.0)
    assert last(kubeai, [active(0, 100, 2), active(10, 100, 2)]).reason == "ScaleDownDelay"
    assert kubeai.desired(active(20, 100, 1)).replicas == 1
    assert last(kubeai, [active(30, 100, 2), active(40, 100, 2), active(50, 100, 2)]).replicas == 2


def test_kubeai_goes_to_zero_when_the_mean_is_zero_and_comes_back_by_the_request_itself() -> None:
    kubeai = KubeAi()
    kubeai.desired(active(0, 1, 1))
    assert last(kubeai, [active(10 * k, 0, 1) for k in range(1, 60)]).replicas == 1, "one request, ten minutes ago"
    assert last(kubeai, [active(10 * k, 0, 1) for k in range(60, 64)]).replicas == 0
    assert kubeai.desired(fleet(640, [])) == Wanted(0, "FirstRequest")
    assert kubeai.desired(fleet(641, [], held=9)) == Wanted(1, "FirstRequest")


def test_kubeai_restarts_from_the_stored_mean() -> None:
    kubeai = KubeAi()
    last(kubeai, [active(10 * k, 300, 2) for k in range(30)])
    assert kubeai.mean == 150
    assert kubeai.restarted().mean == 150
