"""How many replicas there shall be, and why. Pure: the simulator runs this very function.

Rules in order; the first that speaks decides:

    bounds    outside min..max: into it, whatever the metrics say
    grow      at once, from signals that are valid: a held request at zero, a queue beyond its target, KV demand
    missing   fewer than half of the serving pods report: hold
    quiet     full, but nobody waits and nobody new comes: hold
    shrink    one at a time, when every moment of the window agrees, on complete data, and nobody waits
    idle      the last replica, after a whole idle time without a request
    hold      otherwise

Growing looks at one moment and shrinking at a whole window, at 80 and 60 percent: that is the hysteresis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from .policy import Policy
from .types import Branch, Decision, Estimate, History, Inputs, Limit

ARRIVAL_WINDOW_SECONDS: Final = 60.0
"""A new pod helps requests that are yet to come. If none came for this long, full pods are merely well used."""
STEP_WAIT_MILLIS: Final = 1000
"""A request that waits less than this waits for the next step, not for room."""
BURST_MILLIS: Final = 10_000
"""A queue younger than a scrape period may be gone at the next one."""
MAX_GAP_SECONDS: Final = 30.0
"""Three scrape periods: moments further apart do not make a window that was seen."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One decision to make, and the words to make it with."""

    policy: Policy
    estimate: Estimate
    history: History
    now: float

    @property
    def current(self) -> int:
        return self.history.desired

    def hold(self, branch: Branch, reason: str, message: str, limited_by: Limit = "None") -> Decision:
        return self.change(self.current, branch, reason, message, limited_by)

    def change(self, to: int, branch: Branch, reason: str, message: str, limited_by: Limit = "None") -> Decision:
        e = self.estimate
        inputs = Inputs(
            e.demand_blocks,
            e.growth_blocks,
            e.held_requests,
            e.queued_requests,
            e.oldest_queue_millis,
            e.blocks_per_pod,
            e.ready_pods,
            e.starting_pods,
            e.unschedulable_pods,
            e.reporting_pods,
        )
        return Decision(self.now, self.current, to, branch, reason, message, limited_by, inputs)

    def moved(self, seconds: float, *, up: bool) -> int:
        """Return by how many replicas this service was grown (or shrunk) within the last `seconds`."""
        steps = (
            decision.desired - decision.replicas_from
            for decision in self.history.decisions
            if self.now - decision.time < seconds
        )
        return sum(max(0, step if up else -step) for step in steps)

    def window(self, seconds: float) -> list[Estimate]:
        """Return the moments of the last `seconds`, this one last."""
        past = [point for point in self.history.points if self.now - seconds <= point.at < self.now]
        return [*past, self.estimate]

    def seen(self, points: Sequence[Estimate], seconds: float) -> bool:
        """Return whether `points` cover the last `seconds` without a gap."""
        times = [self.now - seconds, *(point.at for point in points)]
        watched = self.now - self.history.started_at >= seconds
        return watched and all(later - former <= MAX_GAP_SECONDS for former, later in pairwise(times))


def decide(policy: Policy, estimate: Estimate, history: History, now: float) -> Decision:
    """Return the decision at `now` for a service whose count is `history.desired`.

    `estimate` is this moment's and is not yet in `history.points`.
    """
    case = _Case(policy, estimate, history, now)
    rules: tuple[Callable[[_Case], Decision | None], ...] = (_bounds, _grow, _missing, _quiet, _at_zero, _shrink, _idle)
    decision = next((decision for rule in rules if (decision := rule(case)) is not None), None)
    decision = decision or case.hold("Demand", "DemandMet", _demand_sentence(case))
    if policy.dry_run and decision.replicas_to != decision.replicas_from:
        message = f"Dry run, nothing changes: {decision.message}"
        return replace(decision, limited_by="DryRun", message=message)
    return decision


def replicas_for(blocks: int, percent: int, blocks_per_pod: int) -> int:
    """Return the fewest pods that hold `blocks` at no more than `percent` of their blocks; at least 1 for any block."""
    if blocks_per_pod == 0:
        return min(blocks, 1)
    return -(-blocks * 100 // (percent * blocks_per_pod))


# --- Bounds -----------------------------------------------------------------------------------------------------
def _bounds(case: _Case) -> Decision | None:
    low, high = case.policy.min_replicas, case.policy.max_replicas
    if case.current > high:
        return case.change(
            high, "Bounds", "AboveMaximum", f"maxReplicas is {high}, and there are {case.current}.", "Max"
        )
    if case.current < low:
        return case.change(low, "Bounds", "BelowMinimum", f"minReplicas is {low}, and there are {case.current}.", "Min")
    return None


# --- Grow -------------------------------------------------------------------------------------------------------
def _grow(case: _Case) -> Decision | None:
    wants = [want for rule in (_want_latency, _want_demand, _want_wake) if (want := rule(case)) is not None]
    if not wants:
        return None
    need, branch, reason, message = max(wants, key=lambda want: want[0])
    wanted = _with_lost(case, need)
    estimate, policy, current = case.estimate, case.policy, case.current
    if estimate.unschedulable_pods and wanted > estimate.supply:
        allowed = _within_capacity(case, wanted)
        if allowed <= current:
            message += f" {_count(estimate.unschedulable_pods, 'pod')} cannot be scheduled: one more is tried later."
            return case.hold(branch, "CapacityUnavailable", message, "Capacity")
        wanted = allowed
    if wanted <= current:
        return None
    if current >= policy.max_replicas:
        return case.hold(branch, "AtMaximum", f"{message} maxReplicas is {policy.max_replicas}.", "Max")
    base = current - case.moved(policy.scale_up.period_seconds, up=True)
    step = max(base + base * policy.scale_up.max_percent // 100, base + policy.scale_up.max_pods)
    to = min(wanted, policy.max_replicas, step)
    if to <= current:
        return case.hold(branch, "ScaleUpStep", f"{message} The step of this period is used up.", "Step")
    limit: Limit = "None" if to == wanted else "Max" if to == policy.max_replicas else "Step"
    if limit != "None":
        message += f" {to} is as far as {'maxReplicas' if limit == 'Max' else 'scaleUp'} allows now."
    return case.change(to, branch, reason, message, limit)


Want = tuple[int, Branch, str, str]
"""Replicas wanted, branch, reason, message."""


def _want_wake(case: _Case) -> Want | None:
    """Without a ready pod any held request is a need, before anything is known of a pod's capacity."""
    estimate = case.estimate
    if estimate.ready_pods > 0 or estimate.held_requests == 0:
        return None
    wanted = max(
        1, replicas_for(estimate.demand_blocks, case.policy.target_utilization_percent, estimate.blocks_per_pod)
    )
    return wanted, "Wake", "RequestsHeld", f"The gateway holds {_count(estimate.held_requests, 'request')}."


def _want_latency(case: _Case) -> Want | None:
    """A queue beyond its target: as many replicas as run what each ready one runs now and queue no more than it.

    Silent pods count as having no queue: what the others report is a lower bound, so it may grow on partial data.
    """
    estimate, target = case.estimate, case.policy.target_queue_depth
    if estimate.queue_pods == 0 or not _queue_stays(case):
        return None
    running_each = estimate.running_requests // estimate.queue_pods
    requests = running_each * estimate.ready_pods + estimate.waiting_requests
    need = -(-requests // max(1, running_each + target))
    message = (
        f"{_count(estimate.waiting_requests, 'request')} wait, more than {target} for each of "
        f"{_count(case.current, 'replica')}; {need} replicas would hold the target."
    )
    return need, "Latency", "QueueAboveTarget", message


def _queue_stays(case: _Case) -> bool:
    """Return whether the queue is above its target and no mere burst: it was so a moment ago, or its oldest is old."""
    target = case.policy.target_queue_depth * case.current
    if case.estimate.waiting_requests <= target:
        return False
    before = case.window(MAX_GAP_SECONDS)[:-1]
    lasted = bool(before) and before[-1].waiting_requests > target
    return lasted or case.estimate.oldest_queue_millis >= BURST_MILLIS


def _demand_need(case: _Case) -> int:
    """Return need(D + growth) at the target utilisation; 0 while demand or capacity is not known."""
    estimate = case.estimate
    if case.current == 0 or not estimate.metrics_available or estimate.blocks_per_pod == 0:
        return 0
    demand = estimate.demand_blocks + estimate.growth_blocks
    return replicas_for(demand, case.policy.target_utilization_percent, estimate.blocks_per_pod)


def _want_demand(case: _Case) -> Want | None:
    need = _demand_need(case)
    if need == 0 or not _arrivals(case):
        return None
    message = (
        f"{_demand_sentence(case)} Below {case.policy.target_utilization_percent}% takes {_count(need, 'replica')}."
    )
    return need, "Demand", "UtilizationAboveTarget", message


def _with_lost(case: _Case, need: int) -> int:
    """Return `need` plus a replacement for each pod that will not come, where the others do not suffice.

    Those are the pods that have been starting for too long, and those that the scheduler passed over. At most as many
    as there are pods that work (one, if none does): a model that never comes up must not take the fleet to its maximum.
    """
    estimate = case.estimate
    if need <= estimate.supply:
        return need
    lost = int(estimate.starting_pods - estimate.starting_credit + 1e-9) + estimate.passed_over_pods
    return need + min(lost, max(1, estimate.ready_pods))


def _within_capacity(case: _Case, wanted: int) -> int:
    """Return how much of `wanted` is asked of a cluster that has no node for some of the pods it was asked for.

    They are no supply, so the need for others goes on. But only a pod that finds a node shows that there is room for
    more (then the older ones count as passed over): until then one more is tried at a time, each after a longer wait,
    and never more than one beyond what is needed, with the pods that wait counted as coming.
    """
    estimate, current = case.estimate, case.current
    unplaced = estimate.unschedulable_pods - estimate.passed_over_pods
    if unplaced == 0:
        return wanted
    # The first one beyond a single pod without a node is tried at once: two pods without one are no accident.
    waits = unplaced - 1 if wanted > current else unplaced
    missing = wanted - estimate.supply
    back_off = waits * case.policy.scale_up.period_seconds
    if estimate.unplaced_seconds < back_off or (wanted <= current and unplaced > missing):
        return current
    return current + 1


def _quiet(case: _Case) -> Decision | None:
    """Full pods to which nobody new comes: a new pod could take nothing over from them."""
    if _demand_need(case) <= case.current or _arrivals(case):
        return None
    message = f"{_demand_sentence(case)} No request waits and none has come for {ARRIVAL_WINDOW_SECONDS:.0f} s."
    return case.hold("Demand", "NoNewRequests", message)


def _arrivals(case: _Case) -> bool:
    """Return whether somebody waits, or the requests in flight rose between two moments of the last minute."""
    if case.estimate.waiting_requests:
        return True
    points = case.window(ARRIVAL_WINDOW_SECONDS)
    return any(later.requests > former.requests for former, later in pairwise(points))


# --- Hold or shrink ---------------------------------------------------------------------------------------------
def _missing(case: _Case) -> Decision | None:
    estimate = case.estimate
    if estimate.metrics_available:
        return None
    message = (
        f"Only {estimate.reporting_pods} of {estimate.ready_pods} ready pods report metrics that are valid and fresh: "
        "the count is held."
    )
    return case.hold("MissingMetrics", "MetricsUnavailable", message, "PartialData")


def _at_zero(case: _Case) -> Decision | None:
    if case.current > 0:
        return None
    return case.hold("Idle", "ScaledToZero", "No request is held: the service stays at zero.")


def _shrink(case: _Case) -> Decision | None:
    """Take away as many as the period allows and the whole window agrees to; never the last one, that is `_idle`'s."""
    policy, current = case.policy, case.current
    floor = max(policy.min_replicas, 1)
    if not _agrees(case, case.estimate, current - 1) or (current == 1 and case.estimate.requests):
        return None
    if current <= floor:
        if policy.min_replicas == 0:
            return None
        return case.hold(
            "Bounds", "AtMinimum", f"{_demand_sentence(case)} minReplicas is {policy.min_replicas}.", "Min"
        )
    seconds = policy.scale_down.stabilization_seconds
    blocked = _unseen(case, seconds)
    if blocked is not None:
        return blocked
    window = case.window(seconds)
    if not all(_agrees(case, point, current - 1) for point in window):
        message = f"{_demand_sentence(case)} Fewer replicas would do now, but not for the whole last {seconds} s."
        return case.hold("Demand", "StabilizationWindow", message, "Window")
    allowed = _allowed_down(case)
    if allowed < 1:
        return _period_used(case)
    to = next(
        to for to in range(max(floor, current - allowed), current) if all(_agrees(case, point, to) for point in window)
    )
    message = f"For {seconds} s demand was below {policy.scale_down.utilization_percent}% of {_count(to, 'replica')}."
    return case.change(to, "Demand", "UtilizationBelowTarget", f"{message} {_demand_sentence(case)}")


def _allowed_down(case: _Case) -> int:
    down = case.policy.scale_down
    return down.max_pods - case.moved(down.period_seconds, up=False)


def _period_used(case: _Case) -> Decision:
    message = (
        f"{_demand_sentence(case)} Another replica goes when {case.policy.scale_down.period_seconds} s have passed."
    )
    return case.hold("Demand", "ScaleDownPeriod", message, "Step")


def _agrees(case: _Case, point: Estimate, replicas: int) -> bool:
    """Return whether `replicas` (at least one) carry a moment's demand with room to spare and nobody waits."""
    if point.held_requests or (point.queued_requests and point.oldest_queue_millis >= STEP_WAIT_MILLIS):
        return False
    down, up = case.policy.scale_down.utilization_percent, case.policy.target_utilization_percent
    capacity = case.estimate.blocks_per_pod * max(replicas, 1)
    fits = point.demand_blocks * 100 < down * capacity or point.demand_blocks == 0
    return fits and (point.demand_blocks + point.growth_blocks) * 100 <= up * capacity


def _idle(case: _Case) -> Decision | None:
    """Take the last replica away once no request was running, queued or held for the whole idle time."""
    policy, seconds = case.policy, case.policy.idle_seconds
    if policy.min_replicas > 0 or case.current != 1 or case.estimate.requests:
        return None
    blocked = _unseen(case, seconds)
    if blocked is not None:
        return blocked
    if any(point.requests for point in case.window(seconds)):
        message = f"No request now; the last replica goes after {seconds} s without one."
        return case.hold("Idle", "IdleWindow", message, "Window")
    if _allowed_down(case) < 1:
        return _period_used(case)
    return case.change(0, "Idle", "Idle", f"No request was running, queued or held for {seconds} s.")


def _unseen(case: _Case, seconds: int) -> Decision | None:
    """Return the hold of a window that is not fully known: partial data, a victim on its way out, a young process."""
    estimate, points = case.estimate, case.window(seconds)
    if estimate.cordoned_pods:
        message = f"{_count(estimate.cordoned_pods, 'cordoned pod')} must finish their requests first."
        return case.hold("Demand", "VictimDraining", message, "Step")
    if case.now - case.history.started_at < seconds:
        message = f"The operator has watched for less than the {seconds} s that shrinking looks back."
        return case.hold("Restart", "WindowNotSeen", message, "Window")
    if estimate.ready_pods == 0:
        return case.hold(
            "MissingMetrics", "NoReadyPod", "No pod is ready: what is asked of it is unknown.", "PartialData"
        )
    if not all(point.complete for point in points):
        message = (
            f"Within the last {seconds} s not every ready pod reported metrics: nothing is taken away on partial data."
        )
        return case.hold("MissingMetrics", "PartialMetrics", message, "PartialData")
    if not case.seen(points, seconds):
        return case.hold(
            "MissingMetrics", "WindowHasGaps", f"The last {seconds} s were not seen without gaps.", "Window"
        )
    return None


# --- Words ------------------------------------------------------------------------------------------------------
def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _demand_sentence(case: _Case) -> str:
    estimate = case.estimate
    growth = f" and {estimate.growth_blocks} more are on their way" if estimate.growth_blocks else ""
    return (
        f"Requests need {_count(estimate.demand_blocks, 'KV block')}{growth}, of "
        f"{estimate.ready_pods * estimate.blocks_per_pod} on {_count(estimate.ready_pods, 'ready pod')}."
    )
