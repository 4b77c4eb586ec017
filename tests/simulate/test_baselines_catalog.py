"""The catalogue of policies: sweeps wide enough to compare, and every policy at work in a simulated fleet."""

from __future__ import annotations

import pytest

from octavo_operator.simulate import synthetic
from octavo_operator.simulate.baselines.catalog import Family, Service, baselines, fixed, octavo, oracle, variants
from octavo_operator.simulate.calibrate import Calibration
from octavo_operator.simulate.fleet import FleetSettings, simulate
from octavo_operator.simulate.pod import Startup
from octavo_operator.simulate.policy import Bounds, Removal

SERVICE = Service(Calibration(), Bounds(1, 8), ttft_seconds=2.0, itl_seconds=0.1)
TRACE = synthetic.step(seconds=300.0, low=1.0, high=4.0)
FAMILIES = (octavo(SERVICE), *baselines(SERVICE), *variants(SERVICE), fixed(SERVICE), oracle(SERVICE, TRACE, 20.0))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_sweep_has_seven_values_and_more_and_the_default_among_them(family: Family) -> None:
    assert len(set(family.sweep)) >= 7
    assert family.default in family.sweep
    assert list(family.sweep) == sorted(family.sweep)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_policy_runs_a_fleet_within_its_bounds_and_equally_twice(family: Family) -> None:
    settings = FleetSettings(SERVICE.calibration, Startup(seconds=20.0), removal=Removal.CORDON)
    first, second = (simulate(TRACE, family.at_default(), settings) for _ in range(2))
    assert first.outcomes == {"done": len(TRACE.requests)}
    assert {change.after for change in first.changes} <= set(range(1, 9))
    assert first.changes == second.changes


def test_the_rivals_are_those_of_the_research_at_their_projects_defaults() -> None:
    """100 concurrent or active requests, 0.80 of KV, 0.85 of supply, 1.0 of KV, 0.55 of the SLO (§2.1 to §2.9)."""
    assert {family.name: family.default for family in baselines(SERVICE)} == {
        "knative-kpa": 100.0,
        "hpa-kv": 0.8,
        "hpa-queue": 5.0,
        "kubeai": 100.0,
        "aibrix-apa": 0.5,
        "wva-v1": 0.8,
        "wva-v2": 0.85,
        "dynamo": 1.0,
        "keda-slo": 0.55,
    }


def test_ours_is_swept_with_both_thresholds_and_is_itself_at_its_default() -> None:
    family = octavo(SERVICE)
    thresholds = []
    for percent in family.sweep:
        policy = family.make(percent).policy  # type: ignore[attr-defined]
        thresholds.append((policy.target_utilization_percent, policy.scale_down.utilization_percent))
    assert (80, 60) in thresholds
    assert all(down < up for up, down in thresholds)
