"""What `decide` answers, as tables: the thermometers, missing data, limits, the window, zero."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo_operator.autoscale import Decision, Estimate, History, Policy, ScaleDown, ScaleUp, decide, to_record

from .fleet import POLICY, T0, moment, past

BUSY = {"demand_blocks": 700, "running_requests": 10}


def answer(point: Estimate, history: History | None = None, policy: Policy = POLICY) -> Decision:
    return decide(policy, point, history or past(point), point.at)


def brief(decision: Decision) -> tuple[int, str, str, str]:
    return decision.replicas_to, decision.branch, decision.reason, decision.limited_by


def rising(point: Estimate, **before: object) -> History:
    """A history of busy moments with fewer requests in flight than at `point`: somebody came."""
    return past(replace(point, **{"running_requests": point.running_requests - 1, **before}))


# --- KV utilisation alone is a bad thermometer -------------------------------------------------------------------
def test_a_queue_grows_the_fleet_although_its_blocks_are_free() -> None:
    point = moment(demand_blocks=300, running_requests=10, queued_requests=200, oldest_queue_millis=15_000)
    decision = answer(point)
    assert brief(decision) == (5, "Latency", "QueueAboveTarget", "Step")
    assert "200 requests wait" in decision.message


def test_full_pods_to_which_nobody_new_comes_are_left_alone() -> None:
    point = moment(demand_blocks=970, running_requests=2)
    assert brief(answer(point)) == (1, "Demand", "NoNewRequests", "None")


def test_full_pods_grow_as_soon_as_somebody_comes() -> None:
    point = moment(demand_blocks=970, running_requests=3)
    assert brief(answer(point, rising(point))) == (2, "Demand", "UtilizationAboveTarget", "None")


def test_reusable_cache_is_no_demand() -> None:
    point = moment(demand_blocks=0, ready_pods=3)
    assert brief(answer(point)) == (2, "Demand", "UtilizationBelowTarget", "None")


def test_one_hot_pod_among_cold_ones_is_a_matter_of_routing() -> None:
    point = moment(demand_blocks=1300, running_requests=13, ready_pods=4)
    decision = answer(point, rising(point))
    assert decision.direction != "Up"


# --- Missing data -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reporting", [0, 1, 2])
def test_fewer_than_half_reporting_holds(reporting: int) -> None:
    point = moment(ready_pods=6, reporting_pods=reporting, queue_pods=reporting, demand_blocks=0)
    decision = answer(point)
    assert brief(decision) == (6, "MissingMetrics", "MetricsUnavailable", "PartialData")
    assert f"{reporting} of 6" in decision.message


@pytest.mark.parametrize("reporting", [3, 4, 5])
def test_partial_data_never_shrinks(reporting: int) -> None:
    point = moment(ready_pods=6, reporting_pods=reporting, queue_pods=reporting, demand_blocks=0)
    assert brief(answer(point)) == (6, "MissingMetrics", "PartialMetrics", "PartialData")


def test_one_silent_moment_within_the_window_keeps_every_pod() -> None:
    point = moment(ready_pods=3)
    history = past(point)
    gap = replace(history.points[-9], reporting_pods=2)
    history = replace(history, points=(*history.points[:-9], gap, *history.points[-8:]))
    assert brief(answer(point, history)) == (3, "MissingMetrics", "PartialMetrics", "PartialData")


def test_a_window_with_a_gap_was_not_seen() -> None:
    point = moment(ready_pods=3)
    history = past(point)
    history = replace(history, points=(*history.points[:-9], *history.points[-4:]))
    assert brief(answer(point, history)) == (3, "MissingMetrics", "WindowHasGaps", "Window")


def test_a_valid_queue_grows_although_the_other_signal_is_missing() -> None:
    point = moment(reporting_pods=0, queue_pods=1, queued_requests=9, oldest_queue_millis=12_000, running_requests=4)
    assert brief(answer(point)) == (2, "Latency", "QueueAboveTarget", "None")


def test_partial_data_may_grow() -> None:
    point = moment(ready_pods=4, reporting_pods=2, queue_pods=2, demand_blocks=3800, running_requests=9)
    assert brief(answer(point, rising(point))) == (5, "Demand", "UtilizationAboveTarget", "None")


# --- Limits -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("current", "need", "expected", "limited"),
    [(1, 3, 3, "None"), (1, 30, 5, "Step"), (6, 30, 12, "Step"), (10, 30, 16, "Max"), (16, 30, 16, "Max")],
)
def test_growth_is_bounded_by_step_and_maximum(current: int, need: int, expected: int, limited: str) -> None:
    policy = Policy(min_replicas=1, max_replicas=16)
    point = moment(ready_pods=current, demand_blocks=need * 800, queued_requests=1, running_requests=5)
    decision = answer(point, policy=policy)
    assert (decision.replicas_to, decision.limited_by) == (expected, limited)


def test_the_step_counts_what_its_period_already_gave() -> None:
    policy = Policy(min_replicas=1, max_replicas=100)
    point = moment(ready_pods=1, demand_blocks=50_000, queued_requests=1, running_requests=5)
    first = answer(point, policy=policy)
    assert first.replicas_to == 5
    history = replace(past(point, desired=5), decisions=(first,))
    later = replace(point, at=T0 + 10)
    assert brief(decide(policy, later, history, later.at)) == (5, "Demand", "ScaleUpStep", "Step")
    later = replace(point, at=T0 + 30)
    assert decide(policy, later, history, later.at).replicas_to == 10


@pytest.mark.parametrize(
    ("unplaced", "passed", "seconds", "need", "expected"),
    [
        (1, 0, 0, 8, 4),  # one pod without a node may be an accident: one more is tried at once
        (2, 0, 0, 8, 4),  # two are none: the next is tried after a step's period, the one after that after two
        (2, 0, 30, 8, 5),
        (3, 0, 30, 8, 5),
        (3, 0, 60, 8, 6),
        (1, 0, 29, 3, 3),  # as many as needed are coming, if a node comes: one beyond them after a period
        (1, 0, 30, 3, 4),
        (2, 0, 3600, 3, 4),  # and never two beyond
        (0, 1, 0, 8, 7),  # later pods found nodes: there is room (7 is what the step of this period allows)
        (0, 2, 0, 4, 6),  # and each that was passed over is replaced
        (0, 5, 0, 4, 7),  # up to as many as work
    ],
)
def test_a_cluster_without_room_is_tried_one_pod_at_a_time(
    unplaced: int, passed: int, seconds: int, need: int, expected: int
) -> None:
    point = moment(
        ready_pods=2,
        unschedulable_pods=unplaced + passed,
        passed_over_pods=passed,
        unplaced_seconds=float(seconds),
        demand_blocks=need * 800,
        queued_requests=3,
        running_requests=5,
    )
    current = 2 + unplaced + passed
    policy = Policy(min_replicas=0, max_replicas=30)
    decision = answer(point, past(point, desired=current), policy)
    assert decision.replicas_to == expected
    if expected == current and passed == 0:
        assert brief(decision) == (current, "Demand", "CapacityUnavailable", "Capacity")
        assert "cannot be scheduled" in decision.message


def test_the_first_pod_of_all_without_a_node_is_no_deadlock() -> None:
    """Nothing serves, nothing was ever measured, and requests are held: another pod is tried."""
    point = moment(ready_pods=0, unschedulable_pods=1, held_requests=3, demand_blocks=9, blocks_per_pod=0)
    early, late = replace(point, unplaced_seconds=29.0), replace(point, unplaced_seconds=30.0)
    assert brief(answer(early, past(early, desired=1))) == (1, "Wake", "CapacityUnavailable", "Capacity")
    assert answer(late, past(late, desired=1)).replicas_to == 2


def test_pods_that_cannot_be_scheduled_do_not_stop_a_fleet_from_shrinking() -> None:
    point = moment(ready_pods=1, unschedulable_pods=3, demand_blocks=100)
    assert answer(point, past(point, desired=4)).replicas_to == 3


def test_starting_pods_are_supply_until_their_credit_is_gone() -> None:
    fields = {"demand_blocks": 2300, "queued_requests": 1, "running_requests": 9, "ready_pods": 2, "starting_pods": 1}
    credited = moment(starting_credit=1.0, **fields)
    assert answer(credited, past(credited, desired=3)).direction == "Hold"
    lost = moment(starting_credit=0.0, **fields)
    assert brief(answer(lost, past(lost, desired=3))) == (4, "Demand", "UtilizationAboveTarget", "None")


def test_a_model_that_never_comes_up_does_not_take_the_fleet_to_its_maximum() -> None:
    """One more is tried, since one node may be bad; then no more."""
    for starting in (3, 4, 5, 8):
        point = moment(ready_pods=0, starting_pods=starting, starting_credit=0.0, demand_blocks=2000, held_requests=9)
        assert answer(point, past(point, desired=starting)).replicas_to == max(4, starting)


@pytest.mark.parametrize(("current", "expected", "limited"), [(1, 2, "Min"), (9, 6, "Max"), (4, 4, "PartialData")])
def test_bounds_act_without_any_metrics(current: int, expected: int, limited: str) -> None:
    point = moment(ready_pods=current, reporting_pods=0, queue_pods=0)
    decision = answer(point, History(T0, current), Policy(min_replicas=2, max_replicas=6))
    assert (decision.replicas_to, decision.limited_by) == (expected, limited)


def test_a_dry_run_proposes_and_changes_nothing() -> None:
    point = moment(ready_pods=3)
    decision = answer(point, policy=replace(POLICY, dry_run=True))
    assert (decision.replicas_to, decision.desired, decision.limited_by) == (2, 3, "DryRun")
    assert decision.message.startswith("Dry run")


# --- The window -------------------------------------------------------------------------------------------------
def test_nothing_shrinks_after_a_restart_until_a_full_window_was_seen() -> None:
    point = moment(ready_pods=8)
    young = past(point, 170)
    assert brief(answer(point, young)) == (8, "Restart", "WindowNotSeen", "Window")
    assert answer(point, past(point, 180)).replicas_to == 7


def test_the_first_moment_of_a_process_changes_nothing() -> None:
    for point in (moment(ready_pods=5), moment(ready_pods=5, demand_blocks=4990, running_requests=40)):
        assert answer(point, History(T0, 5)).direction == "Hold"


@pytest.mark.parametrize(
    "busy",
    [
        {"demand_blocks": 1200, "running_requests": 4},
        {"queued_requests": 1, "oldest_queue_millis": 1500},
        {"held_requests": 1},
    ],
)
def test_one_busy_moment_holds_the_whole_window(busy: dict[str, int]) -> None:
    point = moment(ready_pods=3)
    history = past(point)
    spike = replace(history.points[-15], **busy)
    history = replace(history, points=(*history.points[:-15], spike, *history.points[-14:]))
    assert brief(answer(point, history)) == (3, "Demand", "StabilizationWindow", "Window")


def test_a_request_on_its_way_into_the_next_step_is_not_a_queue() -> None:
    point = moment(ready_pods=3, queued_requests=1, oldest_queue_millis=40, running_requests=2, demand_blocks=50)
    assert answer(point).replicas_to == 2


def test_a_burst_that_may_be_gone_at_the_next_scrape_starts_no_pod() -> None:
    burst = moment(demand_blocks=100, queued_requests=40, oldest_queue_millis=300, running_requests=2)
    assert answer(burst, past(moment())).direction == "Hold"
    assert answer(burst, past(burst)).direction == "Up"


def test_one_goes_at_a_time_and_the_next_when_the_period_has_passed() -> None:
    point = moment(ready_pods=5)
    first = answer(point)
    assert first.replicas_to == 4
    after = replace(past(point, desired=4), decisions=(first,))
    soon = moment(T0 + 50, ready_pods=4)
    after = replace(after, points=(*after.points, *(moment(T0 + s, ready_pods=4) for s in (0, 10, 20, 30, 40))))
    assert brief(decide(POLICY, soon, after, soon.at)) == (4, "Demand", "ScaleDownPeriod", "Step")
    later = moment(T0 + 60, ready_pods=4)
    assert decide(POLICY, later, after, later.at).replicas_to == 3


def test_nothing_more_goes_while_a_victim_finishes() -> None:
    point = moment(ready_pods=3, cordoned_pods=1)
    assert brief(answer(point)) == (3, "Demand", "VictimDraining", "Step")


def test_several_may_go_where_the_policy_says_so_but_only_as_far_as_demand_allows() -> None:
    policy = replace(POLICY, scale_down=ScaleDown(max_pods=4))
    assert answer(moment(ready_pods=8), policy=policy).replicas_to == 4
    assert answer(moment(ready_pods=8, **{**BUSY, "demand_blocks": 3500}), policy=policy).replicas_to == 6


def test_nothing_goes_that_the_trend_would_call_back() -> None:
    point = moment(ready_pods=3, demand_blocks=1100, running_requests=9)
    assert answer(point).replicas_to == 2
    assert brief(answer(replace(point, growth_blocks=600), past(point))) == (3, "Demand", "DemandMet", "None")


# --- Zero -------------------------------------------------------------------------------------------------------
def test_the_last_replica_goes_after_an_idle_time_without_any_request() -> None:
    assert brief(answer(moment(), past(moment(), 300))) == (0, "Idle", "Idle", "None")
    assert brief(answer(moment(), past(moment(), 290))) == (1, "Restart", "WindowNotSeen", "Window")


@pytest.mark.parametrize("field", ["running_requests", "queued_requests", "held_requests", "other_requests"])
def test_any_request_keeps_the_last_replica(field: str) -> None:
    point = moment(**{field: 1})
    assert answer(point).replicas_to == 1
    history = past(moment())
    history = replace(
        history, points=(*history.points[:-5], replace(history.points[-5], **{field: 1}), *history.points[-4:])
    )
    assert brief(answer(moment(), history)) == (1, "Idle", "IdleWindow", "Window")


@pytest.mark.parametrize("credit", [0.4, 0.0])
@pytest.mark.parametrize("desired", [1, 3])
def test_pods_of_which_none_serves_say_nothing_about_demand(desired: int, credit: float) -> None:
    """A model that never came up is not idle, and a fleet that crashed is not without load."""
    point = moment(ready_pods=0, starting_pods=desired, starting_credit=credit)
    assert brief(answer(point, past(point, desired=desired))) == (
        desired,
        "MissingMetrics",
        "NoReadyPod",
        "PartialData",
    )


@pytest.mark.parametrize(
    ("held", "blocks", "per_pod", "expected"),
    [(1, 3, 0, 1), (1, 3, 1000, 1), (50, 2000, 1000, 3), (900, 90_000, 1000, 4)],
)
def test_a_held_request_wakes_a_service_at_zero(held: int, blocks: int, per_pod: int, expected: int) -> None:
    point = moment(ready_pods=0, held_requests=held, demand_blocks=blocks, blocks_per_pod=per_pod)
    decision = answer(point, History(T0, 0))
    assert (decision.replicas_to, decision.branch) == (expected, "Wake")


def test_zero_without_a_held_request_stays_zero() -> None:
    assert brief(answer(moment(ready_pods=0), past(moment(ready_pods=0)))) == (0, "Idle", "ScaledToZero", "None")


def test_held_requests_do_not_multiply_while_the_first_pod_starts() -> None:
    point = moment(ready_pods=0, starting_pods=1, starting_credit=1.0, held_requests=60, demand_blocks=500)
    assert answer(point, past(point, desired=1)).replicas_to == 1


# --- The record -------------------------------------------------------------------------------------------------
def test_the_record_holds_every_input_as_an_integer() -> None:
    record = to_record(answer(moment(ready_pods=3, demand_blocks=10, growth_blocks=2)))
    assert set(record) == {"time", "from", "to", "direction", "branch", "reason", "message", "limitedBy", "inputs"}
    assert record["time"] == "2027-01-15T08:00:00Z"
    assert (record["from"], record["to"], record["direction"]) == (3, 2, "Down")
    assert record["inputs"] == {
        "demandBlocks": 10, "growthBlocks": 2, "heldRequests": 0, "queuedRequests": 0, "oldestQueueMillis": 0,
        "blocksPerPod": 1000, "readyPods": 3, "startingPods": 0, "unschedulablePods": 0, "reportingPods": 3,
    }  # fmt: skip
    assert all(type(value) is int for value in record["inputs"].values())


def test_the_message_retraces_the_arithmetic() -> None:
    point = moment(demand_blocks=970, growth_blocks=200, running_requests=3)
    assert answer(point, rising(point)).message == (
        "Requests need 970 KV blocks and 200 more are on their way, of 1000 on 1 ready pod. Below 80% takes 2 replicas."
    )


def test_a_replica_at_the_minimum_says_so() -> None:
    policy = Policy(min_replicas=1, max_replicas=3, scale_up=ScaleUp())
    assert brief(answer(moment(), policy=policy)) == (1, "Bounds", "AtMinimum", "Min")
    assert brief(answer(moment(**BUSY), policy=policy)) == (1, "Demand", "DemandMet", "None")
