"""The simulated fleet: requests, pods, scrapes and actuation."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.autoscale import Policy
from octavo_operator.simulate.baselines.ours import Octavo
from octavo_operator.simulate.calibrate import Calibration
from octavo_operator.simulate.faults import Faults, Span
from octavo_operator.simulate.fleet import FleetSettings, simulate
from octavo_operator.simulate.gateway import HoldLimits
from octavo_operator.simulate.pod import Startup
from octavo_operator.simulate.policy import FleetSample, Removal, Wanted
from octavo_operator.simulate.result import Objective, Result
from octavo_operator.simulate.routing import ROUTERS
from octavo_operator.simulate.synthetic import steady
from octavo_operator.simulate.trace import Request, Trace

QUICK = FleetSettings(startup=Startup(seconds=30.0, sigma=0.0))
WORK = steady(7, seconds=300.0, rate=3.0)


class Script:
    """Wants what it was told, from the times it was told; remembers what it saw."""

    name = "script"
    period_seconds = 10.0
    scrape_seconds = 10.0

    def __init__(self, *wanted: tuple[float, int], removal: Removal = Removal.CORDON, wakes: bool = False) -> None:
        self._wanted = wanted
        self.removal = removal
        self.wakes = wakes
        self.samples: list[FleetSample] = []
        self.restarts = 0

    def desired(self, sample: FleetSample) -> Wanted:
        self.samples.append(sample)
        return Wanted([count for at, count in self._wanted if at <= sample.at][-1], "Told")

    def restarted(self) -> "Script":
        self.restarts += 1
        return self


class WakesAtOnce(Script):
    """One replica as soon as somebody is held."""

    def desired(self, sample: FleetSample) -> Wanted:
        self.samples.append(sample)
        return Wanted(max(sample.replicas, int(sample.gateway.held_requests > 0)), "Wake")


def outcomes(result: Result) -> dict[str, int]:
    return dict(result.outcomes)


@settings(max_examples=12, deadline=None)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    removal=st.sampled_from(list(Removal)),
    nodes=st.integers(1, 6),
    routing=st.sampled_from(list(ROUTERS)),
    kills=st.lists(st.tuples(st.floats(0, 300), st.integers(0, 5)), max_size=3),
)
def test_every_request_ends_once_whatever_happens(counts, removal, nodes, routing, kills):
    policy = Script(*((index * 50.0, count) for index, count in enumerate(counts)), (300.0, 2), removal=removal)
    fleet = replace(QUICK, nodes=nodes, faults=Faults(kills=tuple(kills), scrape_loss=0.3))
    result = simulate(WORK, policy, fleet, ROUTERS[routing](512))
    assert sum(result.outcomes.values()) == len(WORK.requests) == len(result.tickets)
    assert not result.outcomes[""]
    for ticket in result.tickets:
        if ticket.outcome == "done":
            assert ticket.request.at <= ticket.sent_at <= ticket.first_token_at <= ticket.finished_at


@pytest.mark.parametrize("routing", ROUTERS)
def test_equal_arguments_give_equal_results(routing):
    def ends() -> list[tuple[float | None, int]]:
        policy = Script((0.0, 2), (100.0, 4), (200.0, 1))
        result = simulate(WORK, policy, replace(QUICK, faults=Faults(scrape_loss=0.2)), ROUTERS[routing](512))
        return [(ticket.finished_at, ticket.pod) for ticket in result.tickets]

    assert ends() == ends()


def test_a_cordoned_pod_finishes_what_it_has():
    policy = Script((0.0, 4), (100.0, 1))
    result = simulate(WORK, policy, replace(QUICK, initial_replicas=4))
    assert outcomes(result) == {"done": len(WORK.requests)}
    assert result.counts[-1].replicas == 1


def test_kubernetes_own_grace_cuts_what_streams_longer():
    long = Trace("long", tuple(Request(float(i), 100, 3000) for i in range(4)), 200.0)
    for removal, cut in ((Removal.TERMINATE, 2), (Removal.DRAIN, 0), (Removal.CORDON, 0)):
        policy = Script((0.0, 2), (20.0, 1), removal=removal)
        result = simulate(long, policy, replace(QUICK, initial_replicas=2))
        assert result.outcomes["cut"] == cut, removal


def test_growing_again_takes_a_mark_back_before_it_makes_a_pod():
    long = Trace("long", tuple(Request(float(i), 100, 6000) for i in range(4)), 200.0)
    policy = Script((0.0, 2), (20.0, 1), (40.0, 2))
    result = simulate(long, policy, replace(QUICK, initial_replicas=2))
    assert {ticket.pod for ticket in result.tickets} == {0, 1}
    assert max(count.replicas for count in result.counts) == 2
    assert [count.ready for count in result.counts][-1] == 2


def test_requests_are_held_at_zero_and_the_first_wakes_the_policy():
    policy = WakesAtOnce(wakes=True)
    late = Trace("late", (Request(3.0, 100, 10), Request(4.0, 100, 10)), 100.0)
    result = simulate(late, policy, replace(QUICK, initial_replicas=0))
    assert outcomes(result) == {"done": 2}
    assert 3.0 in [sample.at for sample in policy.samples]
    assert result.tickets[0].sent_at == pytest.approx(33.0)
    assert result.gpu_seconds == pytest.approx(100.0 - 3.0 - 1.0)


def test_too_many_and_too_old_held_requests_are_refused():
    nobody = Script((0.0, 0))
    many = Trace("many", tuple(Request(float(i), 10, 1) for i in range(10)), 200.0)
    result = simulate(many, nobody, replace(QUICK, initial_replicas=0, hold=HoldLimits(4, 100.0)))
    assert outcomes(result) == {"expired": 4, "refused": 6}
    assert result.attainment(Objective(10.0)) == 0.0


def test_a_request_that_no_pod_can_hold_is_refused():
    trace = Trace("huge", (Request(0.0, 100_000, 10), Request(1.0, 10, 10)), 10.0)
    assert outcomes(simulate(trace, Script((0.0, 1)), QUICK)) == {"too_long": 1, "done": 1}


def test_pods_beyond_the_nodes_are_unschedulable_and_cost_nothing():
    policy = Script((0.0, 3))
    result = simulate(WORK, policy, replace(QUICK, initial_replicas=3, nodes=2))
    states = [pod.pod.state.value for pod in policy.samples[-1].pods]
    assert sorted(states) == ["Ready", "Ready", "Unschedulable"]
    assert result.gpu_seconds == pytest.approx(2 * 300.0)


def test_a_killed_pod_ends_its_own_streams_alone_and_is_replaced():
    policy = Script((0.0, 2))
    result = simulate(WORK, policy, replace(QUICK, initial_replicas=2, faults=Faults(kills=((100.0, 0),))))
    cut = [ticket for ticket in result.tickets if ticket.outcome == "cut"]
    assert cut
    assert all(ticket.pod == 0 and ticket.request.at <= 100.0 <= ticket.finished_at for ticket in cut)
    assert {ticket.pod for ticket in result.tickets} == {0, 1, 2}


def test_lost_scrapes_age_and_ghosts_stay():
    policy = Script((0.0, 2), (100.0, 1))
    faults = Faults(metrics_gone=(Span(45.0, 95.0),), ghost_seconds=60.0)
    simulate(WORK, policy, replace(QUICK, initial_replicas=2, faults=faults))
    ages = {sample.at: [round(pod.age_seconds) for pod in sample.pods] for sample in policy.samples}
    assert ages[40.0] == [0, 0]
    assert ages[90.0] == [50, 50]
    ghosts = [sample.at for sample in policy.samples if any(pod.ghost for pod in sample.pods)]
    assert 40.0 <= ghosts[-1] - ghosts[0] <= 60.0
    assert all(pod.age_seconds == 0 for sample in policy.samples for pod in sample.pods if pod.ghost)


def test_pods_that_never_get_ready_or_scheduled_stay_what_they_are():
    policy = Script((0.0, 3))
    faults = Faults(never_ready=frozenset({1}), pending_seconds={2: 100.0})
    simulate(WORK, policy, replace(QUICK, initial_replicas=1, faults=faults))
    seen = [[pod.pod.state.value for pod in sample.pods] for sample in policy.samples]
    assert seen[8] == ["Ready", "Starting", "Unschedulable"]
    assert seen[-1] == ["Ready", "Starting", "Ready"]


def test_a_restart_replaces_the_policy():
    policy = Script((0.0, 1))
    simulate(WORK, policy, replace(QUICK, faults=Faults(restarts=(100.0,))))
    assert policy.restarts == 1


def test_our_changes_carry_the_branch_of_their_record():
    policy = Octavo(Policy(min_replicas=1, max_replicas=6))
    result = simulate(steady(7, seconds=300.0, rate=6.0), policy, QUICK)
    assert result.changes
    assert {change.branch for change in result.changes} <= {"Demand", "Latency"}
    assert result.changes[0][1:3] == (1, result.changes[0].after)


def test_more_pods_serve_more_within_the_objective():
    kept = [
        simulate(WORK, Script((0.0, count)), replace(QUICK, initial_replicas=count)).attainment(Objective(1.0))
        for count in (1, 2, 4)
    ]
    assert kept == sorted(kept)
    assert kept[0] < 0.9 < kept[-1]


def test_prefixes_are_hit_where_the_picker_sends_them():
    requests = tuple(
        Request(2.0 * i, 2049 + 512 * (i // 7), 4, tuple(1000 * (i % 7) + n for n in range(4 + i // 7)))
        for i in range(77)
    )
    trace = Trace("conversations", requests, 200.0)
    fleet = replace(QUICK, initial_replicas=4, calibration=Calibration(blocks=200, block_size=512))

    def hits(routing: str) -> int:
        return simulate(trace, Script((0.0, 4)), fleet, ROUTERS[routing](512)).hit_tokens

    assert hits("prefix-aware") > 0.9 * sum(512 * (3 + i // 7) for i in range(7, 77))
    assert hits("prefix-aware") > hits("round-robin")
