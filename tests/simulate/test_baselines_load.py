"""Autoscalers on the load of pods: AIBrix's APA (operators.md §2.5), llm-d's WVA V1 (§2.6) and V2 (§2.7), and Dynamo's
load loop (§2.9), worked by hand.
"""

from __future__ import annotations

import pytest

from octavo_operator.autoscale.types import PodState
from octavo_operator.simulate.baselines.aibrix import Apa, recommend
from octavo_operator.simulate.baselines.dynamo import (
    Dynamo,
    Engine,
    PlannerConfig,
    Regression,
    easy_change,
    sla_change,
)
from octavo_operator.simulate.baselines.wva import Load, SaturationConfig, WvaV1, analyze
from octavo_operator.simulate.baselines.wva2 import (
    Capacity,
    Lengths,
    Replica,
    TokenConfig,
    WvaV2,
    change,
    derived_capacity,
)
from octavo_operator.simulate.policy import Bounds, Wanted

from .baselines_fleet import fleet, last, metrics, pod

# --- AIBrix APA: current, use, wanted at target 0.5 -----------------------------------------------------------------
APA = {
    "at the target": (4, 0.5, 4),
    "r = 1.1 is not above 1.1": (4, 0.55, 4),
    "r = 1.2: ceil(4.8)": (4, 0.60, 5),
    "r = 2: ceil(6)": (3, 1.0, 6),
    "r = 4: at most ceil(2n)": (4, 2.0, 8),
    "r = 0.92 is not below 0.9": (5, 0.46, 5),
    "r = 0.8: ceil(4)": (5, 0.40, 4),
    "r = 0.1: at least floor(n / 2)": (9, 0.05, 4),
    "unused: floor(3 / 2)": (3, 0.0, 1),
}


@pytest.mark.parametrize(("current", "use", "wanted"), APA.values(), ids=APA)
def test_apa(current: int, use: float, wanted: int) -> None:
    assert recommend(current, use, 0.5) == wanted


def test_apa_as_coded_one_low_sample_within_300_s_wins_and_as_documented_it_does_not() -> None:
    """§2.5: the stabilisation takes the least in the window when it shrinks, the reverse of HPA's."""
    samples = [fleet(at, [metrics(0.5, at=at)] * 8) for at in range(0, 100, 10)]
    low = [fleet(at, [metrics(0.1, at=at)] * 8) for at in range(100, 180, 10)]
    assert last(Apa(), [*samples, *low]).replicas < 8
    assert last(Apa(as_documented=True), [*samples, *low]) == Wanted(8, "ShrinkToGreatest")
    coded, back = Apa(), [fleet(at, [metrics(0.43, at=at)] * 8) for at in range(180, 280, 10)]
    assert last(coded, [*samples, *low, *back]) == Wanted(4, "ShrinkToLeast"), "0.43 alone would have said 7"


def test_apa_averages_the_survivors_of_a_failed_scrape() -> None:
    assert Apa().desired(fleet(0, [metrics(0.9), None, None])).replicas == 6, "1.8 x 3, for the one that answered"
    assert Apa().desired(fleet(0, [None, None])) == Wanted(2, "NoMetrics")


def test_apa_counts_terminating_and_unready_pods() -> None:
    """§2.5: they are not left out: three pods at 1.0, 0 and 0 are used 0.33 each, and the busy one gets no help."""
    leaving = pod("leaving", PodState.TERMINATING, metrics(0.0))
    loading = pod("loading", PodState.STARTING, metrics(0.0))
    assert Apa().desired(fleet(0, [metrics(1.0)], others=[leaving, loading])).replicas == 2
    assert Apa().desired(fleet(0, [metrics(1.0)] * 2)).replicas == 4


def test_apa_takes_the_mean_of_its_window() -> None:
    apa = Apa()
    last(apa, [fleet(at, [metrics(0.5, at=at)] * 4) for at in range(0, 50, 10)])
    assert apa.desired(fleet(50, [metrics(1.0, at=50)] * 4)).replicas == 5, "(5 x 0.5 + 1) / 6 / 0.5 = 1.17"


# --- WVA V1: (kv, queue) of each replica -> change --------------------------------------------------------------------
V1 = {
    "roomy, alone": ([(0.3, 0)], 0),
    "spare KV 0.05 is below 0.10": ([(0.75, 0), (0.75, 0)], 1),
    "spare queue 2 is below 3": ([(0.3, 3), (0.3, 3)], 1),
    "everything is saturated": ([(0.85, 0), (0.2, 5)], 1),
    "two at 0.3: 0.8 - 0.6 leaves 0.2": ([(0.3, 0), (0.3, 0)], -1),
    "two at 0.4: 0.8 - 0.8 leaves 0": ([(0.4, 0), (0.4, 0)], 0),
    "queues after the removal: 5 - 4 leaves 1": ([(0.1, 2), (0.1, 2)], 0),
    "blind: three with 100 queued, one idle": ([(0.5, 100)] * 3 + [(0.1, 0)], 0),
    "blind: two idle beside two saturated may shrink": ([(0.9, 50)] * 2 + [(0.0, 0)] * 2, -1),
}


@pytest.mark.parametrize(("loads", "by"), V1.values(), ids=V1)
def test_wva_v1(loads: list[tuple[float, float]], by: int) -> None:
    assert analyze(SaturationConfig(), [Load(*load) for load in loads]) == by


def test_wva_v1_moves_one_a_loop_and_looks_at_the_peak_of_a_minute() -> None:
    v1 = WvaV1()
    assert v1.desired(fleet(0, [metrics(0.75, at=0)])) == Wanted(2, "Saturated")
    calm = {at: v1.desired(fleet(at, [metrics(0.1, at=at)] * 2)).replicas for at in range(15, 105, 15)}
    assert calm == {15: 2, 30: 2, 45: 2, 60: 2, 75: 2, 90: 1}, "0.8 - 0.85 until the peak is a minute old"


def test_wva_v1_does_nothing_while_a_pod_is_pending() -> None:
    """§2.6, cascade prevention: and so one pod that never reports freezes the model."""
    v1 = WvaV1(bounds=Bounds(1, 10))
    stuck = [fleet(at, [metrics(0.9, at=at, waiting=50)] * 2, unschedulable=1) for at in range(0, 3600, 15)]
    assert last(v1, stuck).replicas == 3


def test_wva_v1_beyond_ten_replicas_one_more_is_within_the_tolerance_of_its_hpa() -> None:
    full = [metrics(0.9, at=0)]
    assert WvaV1().desired(fleet(0, full * 9)).replicas == 10
    v1 = WvaV1()
    assert v1.desired(fleet(0, full * 10)).replicas == 10
    assert v1.emitted == 11


def test_wva_v1_counts_the_series_of_pods_that_are_gone() -> None:
    """§2.6, llm-d-autoscaling#368: three pods, one of them a ghost: 3 - 1 takes nothing away."""
    ghost = pod("ghost", PodState.ENDED, metrics(0.1), ghost=True)
    assert WvaV1().desired(fleet(0, [metrics(0.1)] * 2, others=[ghost])).replicas == 2
    assert WvaV1().desired(fleet(0, [metrics(0.1)] * 2)).replicas == 1


def test_wva_takes_a_long_stream_for_idleness_and_wakes_by_its_fast_loop() -> None:
    """§2.6: zero when no request *ended* in ten minutes."""
    v1 = WvaV1(bounds=Bounds(0, 10))
    streaming = [fleet(at, [metrics(0.2, at=at, running=1)], in_flight=1) for at in range(0, 615, 15)]
    assert last(v1, streaming[:-1]).replicas == 1
    assert v1.desired(streaming[-1]) == Wanted(0, "NoRequests")
    assert v1.desired(fleet(616, [])) == Wanted(0, "Zero")
    assert v1.desired(fleet(617, [], held=1)) == Wanted(1, "FromZero")


# --- WVA V2 -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("prompt", "output", "tokens"),
    [(900, 100, 204.8 * 950), (100, 900, 256 * 550), (2048, 2048, 256 * 3072), (8000, 192, 48 * 8096), (100, 0, 0)],
    ids=["N = B O / (I + O) = 204.8", "N = S = 256", "N = S again", "long prompts: N = 48", "unknown"],
)
def test_wva_v2_derived_capacity(prompt: float, output: float, tokens: float) -> None:
    """§2.7: N (I + O/2), N = min(B O / (I + O), S), with B = 2048 and S = 256."""
    assert derived_capacity(TokenConfig(), Lengths(prompt, output)) == pytest.approx(tokens)


def test_wva_v2_learns_compute_at_saturation() -> None:
    """§2.7: capacity = min(k1, k2); k2 seen at saturation, else the mean of the last ten, else derived."""
    config, capacity, lengths = TokenConfig(), Capacity(), Lengths(900, 100)
    assert capacity.of(config, Replica(100, 16_000, 0), lengths) == 12_800, "memory: 0.80 of the cache"
    assert capacity.of(config, Replica(4000, 16_000, 5), lengths) == 4000, "five wait: this is what compute does"
    assert capacity.of(config, Replica(6000, 16_000, 9), lengths) == 6000
    assert capacity.of(config, Replica(100, 16_000, 0), lengths) == 5000, "the mean of the two"
    assert capacity.of(config, Replica(100, 16_000, 0), Lengths(900, 50)) == 12_800, "another class of output"


# demand, capacity of a replica, ready, pending -> change
V2 = {
    "3400 / 0.85 is 4000, there are 3000": (3400, 1000, 3, 0, 1),
    "the pending one is credited": (3400, 1000, 3, 1, 0),
    "10200 / 0.85 needs 12 of 3": (10_200, 1000, 3, 0, 9),
    "in the band: 0.75": (3000, 1000, 4, 0, 0),
    "4000 - 1300 / 0.70 is 2143": (1300, 1000, 4, 0, -2),
    "4000 - 2200 / 0.70 is less than one": (2200, 1000, 4, 0, 0),
    "pending ones are no supply to take from": (2000, 1000, 2, 2, 0),
    "nothing is known": (2000, 0, 2, 0, 0),
}


@pytest.mark.parametrize(("demand", "per_replica", "ready", "pending", "by"), V2.values(), ids=V2)
def test_wva_v2(demand: float, per_replica: float, ready: int, pending: int, by: int) -> None:
    assert change(TokenConfig(), demand, per_replica, ready, pending) == by


def test_wva_v2_asks_for_all_at_once_and_credits_what_is_pending() -> None:
    """(2 x 14,400 in use + 32,000 held) / 0.85 is 71,529 tokens; a replica holds 0.80 of 16,000."""
    v2 = WvaV2(bounds=Bounds(1, 20))
    assert v2.desired(fleet(0, [metrics(0.9, at=0)] * 2, held=10, held_tokens=32_000)) == Wanted(6, "Required")
    later = [fleet(at, [metrics(0.9, at=at)] * 2, starting=4, held=10, held_tokens=32_000) for at in (15, 30, 45)]
    assert last(v2, later).replicas == 6


def test_wva_v2_holds_without_metrics_and_keeps_one() -> None:
    v2 = WvaV2(bounds=Bounds(1, 20))
    last(v2, [fleet(0, [metrics(0.5, at=0)] * 4)])
    assert last(v2, [fleet(at, [None] * 4) for at in range(15, 900, 15)]).replicas == 4
    assert WvaV2().desired(fleet(0, [metrics(0.0)] * 4)) == Wanted(1, "Removable")


# --- Dynamo -----------------------------------------------------------------------------------------------------------
# (held, queued) of each engine with a cache of 1,000 tokens -> change
EASY = {
    "one above 1.0 is enough": ([(900, 200), (100, 0)], 1),
    "exactly full is not above": ([(900, 100), (900, 100)], 0),
    "all below 0.6": ([(500, 0), (100, 90)], -1),
    "one is not below 0.6": ([(600, 0), (100, 0)], 0),
    "the last one stays": ([(0, 0)], 0),
    "queued prompts count": ([(550, 100), (100, 0)], 0),
}


@pytest.mark.parametrize(("engines", "by"), EASY.values(), ids=EASY)
def test_dynamo_throughput(engines: list[tuple[float, float]], by: int) -> None:
    assert easy_change(PlannerConfig(), [Engine(held, queued, 1000) for held, queued in engines]) == by


@pytest.mark.parametrize(("held", "by"), [(450, 1), (400, 0), (200, 0), (90, -1)])
def test_dynamo_latency(held: float, by: int) -> None:
    """§2.9: the target "latency" has 0.4 and 0.1."""
    assert easy_change(PlannerConfig.latency(), [Engine(held, 0, 1000)] * 2) == by


def regressions(ttft_per_token: float, itl_per_token: float) -> tuple[Regression, Regression]:
    """TTFT 0.1 s + queue, ITL 0.01 s + tokens held, seen five times."""
    ttft, itl = Regression(), Regression()
    for load in range(0, 500, 100):
        ttft.observe(load, 0.1 + ttft_per_token * load)
        itl.observe(load, 0.01 + itl_per_token * load)
    return ttft, itl


SLA = {
    "all TTFT above 0.5 s": ([(100, 500), (100, 600)], 1),
    "one of two is not enough": ([(700, 500), (500, 0)], 0),
    "all ITL above 0.05 s": ([(900, 0), (900, 0)], 1),
    "after the removal 0.8 of the budget is exceeded": ([(200, 200), (200, 200)], 0),
    "after the removal all fits": ([(100, 50), (100, 50)], -1),
    "after the removal the cache would be full": ([(500, 0), (100, 0)], 0),
}


@pytest.mark.parametrize(("engines", "by"), SLA.values(), ids=SLA)
def test_dynamo_sla(engines: list[tuple[float, float]], by: int) -> None:
    ttft, itl = regressions(0.001, 0.00005)
    loads = [Engine(held, queued, 1000) for held, queued in engines]
    assert sla_change(PlannerConfig("sla"), loads, ttft, itl) == by
    assert sla_change(PlannerConfig("sla"), loads, Regression(), Regression()) == 0, "fewer than five observations"


def test_dynamo_moves_by_one_and_observes_while_a_worker_starts() -> None:
    full, idle = [metrics(1.0, tokens=100)] * 2, [metrics(0.1)] * 2
    assert Dynamo().desired(fleet(0, full)) == Wanted(3, "ScaleUp")
    assert Dynamo().desired(fleet(0, full, starting=1)) == Wanted(3, "ScalingInProgress")
    assert Dynamo().desired(fleet(0, idle)) == Wanted(1, "ScaleDown")


def test_dynamo_may_shrink_while_a_worker_is_pending() -> None:
    """§2.9: dynamo#14251, a pod Pending for an hour kept the planner observing, was fixed by PR#14671."""
    assert Dynamo().desired(fleet(0, [metrics(0.1)] * 2, unschedulable=1)) == Wanted(2, "ScaleDown")


def test_dynamo_holds_when_the_workers_that_report_are_not_those_that_exist() -> None:
    assert Dynamo().desired(fleet(0, [metrics(1.0, tokens=9), None])) == Wanted(2, "WorkerCountMismatch")
    assert Dynamo().desired(fleet(0, [None, None])) == Wanted(2, "NoMetrics")


def test_dynamo_learns_its_regressions_from_scrapes() -> None:
    dynamo = Dynamo(PlannerConfig("sla"))
    seen: list[float] = []
    for step in range(8):
        seen.append(2.0)
        dynamo.desired(fleet(5 * step, [metrics(0.5, at=5 * step, tokens=4000, ttft=seen, itl=[0.01] * len(seen))]))
    wanted = dynamo.desired(fleet(40, [metrics(0.5, at=40, tokens=4000, ttft=[*seen, 2.0], itl=[0.01] * 9)]))
    assert wanted == Wanted(2, "ScaleUp"), "a mean TTFT of 2 s against 0.5 s"
