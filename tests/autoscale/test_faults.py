"""The autoscaler in a simulated fleet with something broken: no deadlock, no blind shrinking, a bounded peak."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("simpy")

from octavo_operator.simulate.baselines.ours import Octavo
from octavo_operator.simulate.catalogue import ENTRIES, OURS, Setting
from octavo_operator.simulate.faults import Faults
from octavo_operator.simulate.fleet import FleetSettings, simulate
from octavo_operator.simulate.pod import Startup
from octavo_operator.simulate.policy import Bounds, Removal
from octavo_operator.simulate.result import Objective, Result
from octavo_operator.simulate.synthetic import step

OBJECTIVE = Objective(2.0)
COLD_START = 30.0
WARM = 2
"""Pods 0 and 1 are there from the start; 2 is the first that the autoscaler asks for."""


def run(faults: Faults = Faults(), *, seconds: float = 900.0, nodes: int = 64) -> Result:
    """A rate that rises fivefold for the middle third."""
    trace = step(0, seconds)
    setting = Setting(trace, FleetSettings().calibration, OBJECTIVE, COLD_START, Bounds(1, 32))
    policy = ENTRIES[OURS].make(ENTRIES[OURS].default, setting)
    assert isinstance(policy, Octavo)
    settings = FleetSettings(
        startup=Startup(COLD_START), faults=faults, initial_replicas=WARM, nodes=nodes, removal=Removal.CORDON
    )
    return simulate(trace, policy, settings)


@cache
def undisturbed() -> Result:
    return run()


def kept_as_well_as_undisturbed(result: Result) -> bool:
    return result.attainment(OBJECTIVE) >= undisturbed().attainment(OBJECTIVE) - 0.05


@pytest.mark.parametrize("pending", [{2}, {3}, {2, 3}])
def test_pods_without_a_node_do_not_keep_the_others_from_being_asked_for(pending: set[int]) -> None:
    result = run(Faults(pending_seconds=dict.fromkeys(pending, 3600.0)))
    assert kept_as_well_as_undisturbed(result), result.attainment(OBJECTIVE)
    assert result.outcomes["cut"] == 0


def test_most_pods_without_a_node_delay_the_others_by_a_few_periods_only() -> None:
    result = run(Faults(pending_seconds={2: 3600.0, 4: 3600.0, 6: 3600.0}))
    late = [ticket for ticket in result.tickets if ticket.request.at > 500]
    assert sum(map(OBJECTIVE.kept, late)) >= 0.95 * len(late)


def test_a_full_cluster_is_not_asked_for_pods_without_end() -> None:
    result = run(nodes=3)
    ready = max(count.ready for count in result.counts)
    assert ready == 3
    assert result.peak <= 3 + 4 + 3, "the step that found no room, and one more after 60, 90 and 120 s"
