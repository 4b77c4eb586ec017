"""Every policy at work in a simulated fleet: within its bounds, equally twice, and no request lost."""

from __future__ import annotations

import pytest

from octavo_operator.simulate import synthetic
from octavo_operator.simulate.calibrate import Calibration
from octavo_operator.simulate.catalogue import ENTRIES, FIXED, Setting
from octavo_operator.simulate.fleet import FleetSettings, simulate
from octavo_operator.simulate.pod import Startup
from octavo_operator.simulate.policy import Bounds, Removal
from octavo_operator.simulate.result import Objective

TRACE = synthetic.step(seconds=300.0, low=1.0, high=4.0)
SETTING = Setting(TRACE, Calibration(), Objective(2.0, 0.1), 20.0, Bounds(1, 8))


@pytest.mark.parametrize("name", ENTRIES)
def test_every_policy_runs_a_fleet(name: str) -> None:
    entry = ENTRIES[name]
    settings = FleetSettings(SETTING.calibration, Startup(seconds=20.0), removal=Removal.CORDON)
    first, second = (simulate(TRACE, entry.make(entry.default, SETTING), settings) for _ in range(2))
    assert first.outcomes == {"done": len(TRACE.requests)}
    assert {change.after for change in first.changes} <= set(range(1, 9))
    assert first.changes == second.changes


def test_the_rivals_stand_at_their_projects_defaults() -> None:
    """100 concurrent or active requests, 0.80 of KV, 0.85 of supply, 1.0 of KV, 0.55 of the SLO (§2.1 to §2.9)."""
    defaults = {name: entry.default for name, entry in ENTRIES.items() if entry.reactive}
    assert defaults == {
        "octavo": 80,
        "knative-kpa": 100,
        "hpa-kv": 0.8,
        "hpa-queue": 5,
        "kubeai": 100,
        "aibrix-apa": 0.5,
        "aibrix-apa-documented": 0.5,
        "wva-v1": 0.8,
        "wva-v2": 0.85,
        "dynamo": 1.0,
        "keda-slo": 0.55,
    }
    assert all(len(entry.sweep()) >= 7 for entry in ENTRIES.values() if entry is not ENTRIES[FIXED])
