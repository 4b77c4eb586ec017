"""NVIDIA Dynamo's planner, its fast loop over load, for aggregated workers.

Source: operators.md §2.9; ai-dynamo/dynamo `components/src/dynamo/planner/core/load_scaling.py`, `config/defaults.py`.
One worker up or down every 5 s; observe only while a change is under way. Its default target is "throughput": up if any
engine's `(scheduled + queued KV) / max KV` is above 1.0, down if all are below 0.6; "latency" has 0.4 and 0.1. "sla"
adds a worker if all engines' estimates of TTFT, or all of ITL, exceed the SLO, and takes one away if with N/(N-1) of
the load all would stay below 0.8 of it (§2.9 has "all < 0.8 SLA"; the version read looks at the load after the
removal). Chosen where §2.9 is silent: forward-pass metrics are not in a scrape, so the two regressions are over scrapes
(mean TTFT against queued prompt tokens, mean ITL against tokens held), 5 to 64 observations; queued KV is the queue's
prompt tokens; the GPU budget of 8 is left to the fleet's bounds. §2.9's deadlock is left as fixed: workers that start
stop growth, not shrinking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from octavo_engine import contract
from octavo_operator.simulate.baselines.series import LOST_AFTER_PERIODS, line
from octavo_operator.simulate.policy import Bounds, Buckets, FleetSample, PodMetrics, Removal, Wanted

INTERVAL_SECONDS: Final = 5.0
MIN_OBSERVATIONS: Final = 5
MAX_OBSERVATIONS: Final = 64

Target = Literal["throughput", "latency", "sla"]


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """Defaults of the planner. `up`, `down`: of the KV ratio; SLOs in seconds; `sensitivity`: share of an SLO."""

    target: Target = "throughput"
    up: float = 1.0
    down: float = 0.6
    ttft_seconds: float = 0.5
    itl_seconds: float = 0.05
    sensitivity: float = 0.8
    block_size: int = contract.BLOCK_SIZE

    @classmethod
    def latency(cls) -> PlannerConfig:
        """Return the thresholds of the target "latency"."""
        return cls("latency", 0.4, 0.1)

    @property
    def swept(self) -> float:
        """Return the parameter to sweep: the upper threshold, or the TTFT's SLO."""
        return self.ttft_seconds if self.target == "sla" else self.up


class Engine(NamedTuple):
    """One engine's load in tokens: held by running sequences, queued prompts, and what its cache holds."""

    held: float
    queued: float
    total: float


def easy_change(config: PlannerConfig, engines: list[Engine]) -> int:
    """Return +1, 0 or -1 for the targets "throughput" and "latency"."""
    ratios = [(engine.held + engine.queued) / engine.total for engine in engines]
    if any(ratio > config.up for ratio in ratios):
        return 1
    return -1 if len(engines) > 1 and all(ratio < config.down for ratio in ratios) else 0


class Regression:
    """A line through the last observations of a latency (seconds) against a load (tokens)."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=MAX_OBSERVATIONS)

    def observe(self, load: float, seconds: float) -> None:
        """Take one observation in."""
        self._points.append((load, seconds))

    def estimate(self, load: float) -> float | None:
        """Return the seconds at `load`, or None with fewer than five observations. More load is never faster."""
        if len(self._points) < MIN_OBSERVATIONS:
            return None
        intercept, slope = line(self._points)
        if slope <= 0:
            return sum(seconds for _, seconds in self._points) / len(self._points)
        return max(0.0, intercept + slope * load)


def sla_change(config: PlannerConfig, engines: list[Engine], ttft: Regression, itl: Regression) -> int:
    """Return +1, 0 or -1 for the target "sla"."""
    now = [(ttft.estimate(engine.queued), itl.estimate(engine.held + engine.queued)) for engine in engines]
    if _all_above([first for first, _ in now], config.ttft_seconds):
        return 1
    if _all_above([between for _, between in now], config.itl_seconds):
        return 1
    if len(engines) < 2:
        return 0
    more = len(engines) / (len(engines) - 1)
    fits = all(_fits_after(config, engine, more, ttft, itl) for engine in engines)
    return -1 if fits else 0


def _all_above(estimates: list[float | None], limit: float) -> bool:
    return all(estimate is not None and estimate > limit for estimate in estimates)


def _fits_after(config: PlannerConfig, engine: Engine, more: float, ttft: Regression, itl: Regression) -> bool:
    held = (engine.held + engine.queued) * more
    own, first, between = ttft.estimate(0), ttft.estimate(engine.queued * more), itl.estimate(held)
    if own is None or first is None or between is None or held >= engine.total:
        return False
    queue_budget = (config.ttft_seconds - own) * config.sensitivity
    return queue_budget > 0 and first - own < queue_budget and between < config.itl_seconds * config.sensitivity


class Dynamo:
    """The load loop; the parameter to sweep is `config.swept`."""

    period_seconds = INTERVAL_SECONDS
    scrape_seconds = INTERVAL_SECONDS
    wakes = False
    removal = Removal.TERMINATE

    def __init__(self, config: PlannerConfig | None = None, bounds: Bounds | None = None) -> None:
        self.config = config or PlannerConfig()
        self.name = f"dynamo-{self.config.target}({self.config.swept:g})"
        bounds = bounds or Bounds()
        self.bounds = Bounds(max(1, bounds.low), bounds.high)  # min_endpoint 1
        self._ttft, self._itl = Regression(), Regression()
        self._before: dict[str, PodMetrics] = {}

    def desired(self, sample: FleetSample) -> Wanted:
        """Run one interval."""
        max_age = self.scrape_seconds * LOST_AFTER_PERIODS
        reports = {pod.pod.uid: m for pod in sample.ready if (m := pod.reported(max_age)) is not None}
        self._learn(reports)
        current = self.bounds.clamp(sample.replicas)
        if current != sample.replicas:
            return Wanted(current, "Budget")
        if not reports:
            return Wanted(current, "NoMetrics")
        if len(reports) != len(sample.ready):
            return Wanted(current, "WorkerCountMismatch")
        engines = [self._engine(metrics) for metrics in reports.values()]
        if self.config.target == "sla":
            by = sla_change(self.config, engines, self._ttft, self._itl)
        else:
            by = easy_change(self.config, engines)
        leaving, coming = len(sample.ready) > sample.replicas, len(sample.ready) < sample.replicas
        if by and (leaving or (coming and by > 0)):
            return Wanted(current, "ScalingInProgress")
        return Wanted(self.bounds.clamp(current + by), {1: "ScaleUp", 0: "NoChange", -1: "ScaleDown"}[by])

    def restarted(self) -> Dynamo:
        """Return it without memory: it observes afresh."""
        return Dynamo(self.config, self.bounds)

    def _learn(self, reports: Mapping[str, PodMetrics]) -> None:
        for uid, now in reports.items():
            before = self._before.get(uid)
            if before is None or before.at >= now.at:
                continue
            first, between = _mean(before.ttft, now.ttft), _mean(before.itl, now.itl)
            if first is not None:
                self._ttft.observe(before.queue_tokens, first)
            if between is not None:
                self._itl.observe(self._engine(before).held, between)
        self._before = dict(reports)

    def _engine(self, metrics: PodMetrics) -> Engine:
        block = self.config.block_size
        return Engine(metrics.kv.active * block, metrics.queue_tokens, metrics.kv.total * block)


def _mean(before: Buckets, after: Buckets) -> float | None:
    """Return the mean of what was observed in between, each taken for the middle of its bucket."""
    cumulative = [later - former for former, later in zip(before.counts, after.counts, strict=True)]
    if cumulative[-1] <= 0:
        return None
    edges = (0.0, *after.bounds, after.bounds[-1])
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    rises = [high - low for low, high in pairwise((0, *cumulative))]
    return sum(rise * middle for rise, middle in zip(rises, middles, strict=True)) / cumulative[-1]
