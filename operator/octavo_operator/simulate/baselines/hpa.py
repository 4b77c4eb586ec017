"""Kubernetes' HorizontalPodAutoscaler v2: from a metric to replicas, and how fast it may move.

Source: operators.md §2.2; kubernetes `pkg/controller/podautoscaler` (replica_calculator, horizontal), and the defaults
of autoscaling/v2. Sync 15 s, tolerance 0.1. Behaviour by default: up at once, the larger of +100 % and +4 pods in 15 s;
down to the largest recommendation of 300 s, 100 % in 15 s. The window starts with the count it finds (so a restarted
controller does not shrink for 300 s). Chosen where §2.2 is silent: for a Pods metric a pod that runs but has no series
yet (it loads weights) is *missing*; one that no node has room for is *unready*; terminating pods are ignored.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from octavo_operator.autoscale.types import PodState
from octavo_operator.simulate.baselines.series import Scrapes
from octavo_operator.simulate.policy import Bounds, FleetSample, PodMetrics, Removal, Wanted

SYNC_SECONDS: Final = 15.0
TOLERANCE: Final = 0.1
MILLI: Final = 1000
"""HPA calculates with thousandths, as integers."""


class Rule(NamedTuple):
    """At most `value` pods (or percent of the count at the period's start) within `period_seconds`."""

    kind: Literal["Pods", "Percent"]
    value: int
    period_seconds: float


@dataclass(frozen=True, slots=True)
class Direction:
    """Stabilisation window in seconds, and rate rules of which the one that allows most holds."""

    window_seconds: float
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Behavior:
    """`spec.behavior`; the defaults are those of autoscaling/v2."""

    up: Direction = Direction(0.0, (Rule("Percent", 100, 15.0), Rule("Pods", 4, 15.0)))
    down: Direction = Direction(300.0, (Rule("Percent", 100, 15.0),))


# --- Metric to replicas -----------------------------------------------------------------------------------------
def pods_metric(
    target: int, current: int, values: Sequence[int], missing: int = 0, unready: int = 0, tolerance: float = TOLERANCE
) -> int | None:
    """Return the replicas for a Pods metric with target AverageValue; `target` and `values` in thousandths.

    `values`: of the pods that have the metric. None: no pod has it, so nothing is said.
    """
    if not values:
        return None
    ratio = _ratio(values, target)
    counts_unready = unready > 0 and ratio > 1
    if not counts_unready and not missing:
        return current if _within(ratio, tolerance) else math.ceil(ratio * len(values))
    filled = [*values]
    if ratio < 1:
        filled += [target] * missing
    elif ratio > 1:
        filled += [0] * missing
    if counts_unready:
        filled += [0] * unready
    corrected = _ratio(filled, target)
    if _within(corrected, tolerance) or (ratio < 1 < corrected) or (corrected < 1 < ratio):
        return current
    replicas = math.ceil(corrected * len(filled))
    against = (corrected < 1 and replicas > current) or (corrected > 1 and replicas < current)
    return current if against else replicas


def external_average(target: int, current: int, total: int, tolerance: float = TOLERANCE) -> int:
    """Return the replicas for an External metric with target AverageValue; `target` and `total` in thousandths."""
    if current and _within(total / (target * current), tolerance):
        return current
    return -(-total // target)


def external_value(target: int, current: int, ready: int, value: int, tolerance: float = TOLERANCE) -> int:
    """Return the replicas for an External metric with target Value: its ratio is multiplied by the ready pods."""
    ratio = value / target
    return current if _within(ratio, tolerance) else math.ceil(ratio * ready)


def _ratio(values: Sequence[int], target: int) -> float:
    return sum(values) // len(values) / target


def _within(ratio: float, tolerance: float) -> bool:
    return 1.0 - tolerance <= ratio <= 1.0 + tolerance


# --- Recommendation to count ------------------------------------------------------------------------------------
@dataclass(slots=True)
class Controller:
    """What follows every recommendation: stabilisation, rates, bounds. One call is one sync."""

    bounds: Bounds
    behavior: Behavior = field(default_factory=Behavior)
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _moves: list[tuple[float, int]] = field(default_factory=list)

    def apply(self, now: float, current: int, recommended: int) -> Wanted:
        """Return the count to set, from the live count and this sync's recommendation."""
        if not self.bounds.low <= current <= self.bounds.high:
            return self._moved(now, current, self.bounds.clamp(current), "OutsideBounds")
        if not self._recommended:
            self._recommended.append((now, current))
        stable = self._stabilized(now, current, recommended)
        allowed = self.bounds.clamp(self._rate_limited(now, current, stable))
        reason = "Recommended"
        if allowed != recommended:
            reason = "Stabilized" if stable != recommended else "Limited"
        return self._moved(now, current, allowed, reason)

    def hold(self, now: float, current: int, reason: str) -> Wanted:
        """Return the live count (within the bounds) for a sync without a metric."""
        return self._moved(now, current, self.bounds.clamp(current), reason)

    def _stabilized(self, now: float, current: int, recommended: int) -> int:
        up, down = self.behavior.up.window_seconds, self.behavior.down.window_seconds
        lowest = min([recommended, *(count for at, count in self._recommended if now - at < up)])
        highest = max([recommended, *(count for at, count in self._recommended if now - at < down)])
        self._recommended = [(at, count) for at, count in self._recommended if now - at < max(up, down)]
        self._recommended.append((now, recommended))
        return min(max(current, lowest), highest)

    def _rate_limited(self, now: float, current: int, to: int) -> int:
        if to > current:
            return min(to, max(current, max(self._ceiling(now, current, rule) for rule in self.behavior.up.rules)))
        if to < current:
            return max(to, min(current, min(self._floor(now, current, rule) for rule in self.behavior.down.rules)))
        return to

    def _ceiling(self, now: float, current: int, rule: Rule) -> int:
        start = self._at_period_start(now, current, rule)
        return start + rule.value if rule.kind == "Pods" else -(-start * (100 + rule.value) // 100)

    def _floor(self, now: float, current: int, rule: Rule) -> int:
        start = self._at_period_start(now, current, rule)
        return start - rule.value if rule.kind == "Pods" else start * (100 - rule.value) // 100

    def _at_period_start(self, now: float, current: int, rule: Rule) -> int:
        return current - sum(change for at, change in self._moves if now - at < rule.period_seconds)

    def _moved(self, now: float, current: int, to: int, reason: str) -> Wanted:
        longest = max(rule.period_seconds for rule in (*self.behavior.up.rules, *self.behavior.down.rules))
        self._moves = [(at, change) for at, change in self._moves if now - at < longest]
        if to != current:
            self._moves.append((now, to - current))
        return Wanted(to, reason)


# --- Policies ---------------------------------------------------------------------------------------------------
class Hpa(ABC):
    """An HPA on one Pods metric, AverageValue `target`. Never below 1: minReplicas 0 needs an alpha gate and a metric
    that exists without pods.
    """

    period_seconds = SYNC_SECONDS
    scrape_seconds = SYNC_SECONDS
    wakes = False
    removal = Removal.TERMINATE

    def __init__(
        self,
        name: str,
        target: float,
        bounds: Bounds,
        behavior: Behavior | None = None,
    ) -> None:
        self.name = f"{name}({target:g})"
        self._name, self._target, self._behavior = name, target, behavior or Behavior()
        self._bounds = Bounds(max(1, bounds.low), bounds.high)
        self._controller = Controller(self._bounds, self._behavior)
        self._scrapes = Scrapes(SYNC_SECONDS, SYNC_SECONDS)

    @abstractmethod
    def value(self, metrics: PodMetrics) -> float:
        """Return the metric of one pod."""

    def desired(self, sample: FleetSample) -> Wanted:
        """Run one sync."""
        recommended = self._recommend(sample, self._scrapes.current(sample))
        if recommended is None:
            return self._controller.hold(sample.at, sample.replicas, "NoMetrics")
        return self._controller.apply(sample.at, sample.replicas, recommended)

    def restarted(self) -> Hpa:
        """Return it without memory."""
        return type(self)(self._name, self._target, self._bounds, self._behavior)

    def _recommend(self, sample: FleetSample, current: Mapping[str, PodMetrics]) -> int | None:
        values, missing, unready = [], 0, 0
        for pod in sample.listed:
            metrics = current.get(pod.pod.uid)
            if pod.pod.state is PodState.UNSCHEDULABLE:
                unready += 1
            elif metrics is None:
                missing += 1
            else:
                values.append(round(self.value(metrics) * MILLI))
        return pods_metric(round(self._target * MILLI), sample.replicas, values, missing, unready)


class HpaKv(Hpa):
    """HPA on the KV utilisation of each pod. Kubernetes has no default target; 0.80 is chosen, as ours."""

    def __init__(
        self,
        name: str = "hpa-kv",
        target: float = 0.80,
        bounds: Bounds | None = None,
        behavior: Behavior | None = None,
    ) -> None:
        super().__init__(name, target, bounds or Bounds(), behavior)

    def value(self, metrics: PodMetrics) -> float:
        """Return the share of blocks that are held, 0 … 1."""
        return metrics.utilization


class HpaQueue(Hpa):
    """HPA on the requests that wait on each pod. No default target either; 5 is what WVA V1 calls saturated (§2.6)."""

    def __init__(
        self,
        name: str = "hpa-queue",
        target: float = 5.0,
        bounds: Bounds | None = None,
        behavior: Behavior | None = None,
    ) -> None:
        super().__init__(name, target, bounds or Bounds(), behavior)

    def value(self, metrics: PodMetrics) -> float:
        """Return the waiting sequences."""
        return metrics.waiting
