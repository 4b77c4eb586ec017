"""llm-d's Workload Variant Autoscaler with its first saturation analyzer (V1), one variant.

Source: operators.md §2.6; llm-d-workload-variant-autoscaler `docs/saturation-analyzer.md`, `internal/saturation`. It
only emits a number; an HPA with AverageValue 1 moves the Deployment, with the behaviour of the chart of the version
read (no windows, 10 pods in 15 s; a newer README says 240 s, which would only slow it). HPA's tolerance of 10 % applies
to that number, so from ten replicas on +1 is too little to act on. Chosen where §2.6 is silent: no pod unsaturated
means growing; "fewer pods report than exist" is taken literally, so a ghost's series raises the count of those that
report.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from octavo_operator.simulate.baselines.hpa import (
    MILLI,
    SYNC_SECONDS,
    Behavior,
    Controller,
    Direction,
    Rule,
    external_average,
)
from octavo_operator.simulate.baselines.series import Scrapes
from octavo_operator.simulate.policy import Bounds, FleetSample, PodMetrics, Removal, Wanted

LOOP_SECONDS: Final = 30.0
PEAK_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 600.0
CHART_BEHAVIOR: Final = Behavior(
    up=Direction(0.0, (Rule("Pods", 10, 15.0),)), down=Direction(0.0, (Rule("Pods", 10, 15.0),))
)


@dataclass(frozen=True, slots=True)
class SaturationConfig:
    """Thresholds with their defaults: KV as a share of blocks, queues in requests."""

    kv: float = 0.80
    queue: float = 5.0
    kv_spare: float = 0.10
    queue_spare: float = 3.0


class Load(NamedTuple):
    """One replica's peak KV utilisation (0 … 1) and queue length of the last minute."""

    kv: float
    queue: float


def analyze(config: SaturationConfig, loads: Sequence[Load]) -> int:
    """Return +1, 0 or -1 for the replicas that report."""
    calm = [load for load in loads if load.kv < config.kv and load.queue < config.queue]
    if not calm:
        return 1
    spare_kv = config.kv - sum(load.kv for load in calm) / len(calm)
    spare_queue = config.queue - sum(load.queue for load in calm) / len(calm)
    if spare_kv < config.kv_spare or spare_queue < config.queue_spare:
        return 1
    if len(calm) < 2:
        return 0
    left_kv = config.kv - sum(load.kv for load in calm) / (len(calm) - 1)
    left_queue = config.queue - sum(load.queue for load in calm) / (len(calm) - 1)
    return -1 if left_kv >= config.kv_spare and left_queue >= config.queue_spare else 0


class Wva(ABC):
    """The loop, the emitted number and the HPA behind it, for whichever analyzer."""

    period_seconds = SYNC_SECONDS
    scrape_seconds = SYNC_SECONDS
    wakes = True  # a loop of 100 ms asks for the queue of a service at zero
    removal = Removal.TERMINATE

    def __init__(self, name: str, bounds: Bounds | None, stored: int | None = None) -> None:
        self.name = name
        self.bounds = bounds or Bounds()
        self.emitted = stored
        """The number that the HPA reads; the status of the resource keeps it over a restart."""
        self.scrapes = Scrapes(IDLE_SECONDS, SYNC_SECONDS)
        self._hpa = Controller(self.bounds, CHART_BEHAVIOR)
        self._next_loop = float("-inf")
        self._started: float | None = None

    @abstractmethod
    def analyzed(self, sample: FleetSample) -> tuple[int, str]:
        """Return what the analyzer wants for this loop, and why."""

    def desired(self, sample: FleetSample) -> Wanted:
        """Run one sync of the HPA, after the loop if one is due."""
        self.scrapes.add(sample)
        self._started = sample.at if self._started is None else self._started
        if sample.replicas == 0:
            return self._from_zero(sample)
        reason = "Emitted"
        if sample.at >= self._next_loop:
            self._next_loop = sample.at + LOOP_SECONDS
            wanted, reason = (0, "NoRequests") if self._idle(sample) else self.analyzed(sample)
            self.emitted = self.bounds.clamp(wanted)
        emitted = sample.replicas if self.emitted is None else self.emitted
        moved = self._hpa.apply(sample.at, sample.replicas, external_average(MILLI, sample.replicas, emitted * MILLI))
        return moved if moved.replicas == sample.replicas and reason == "Emitted" else moved._replace(reason=reason)

    def _from_zero(self, sample: FleetSample) -> Wanted:
        if self.bounds.low == 0 and not sample.gateway.held_requests:
            return Wanted(0, "Zero")
        self.emitted = max(1, self.bounds.low)
        self._started = sample.at
        return Wanted(self.emitted, "FromZero")

    def _idle(self, sample: FleetSample) -> bool:
        """Return whether no request *ended* for ten minutes: one that streams for longer looks idle."""
        if self.bounds.low > 0 or self._started is None or sample.at - self._started < IDLE_SECONDS:
            return False
        if not self.scrapes.seen(sample.at, PEAK_SECONDS):
            return False  # the query fails, which is not an answer of 0
        return self.scrapes.increase(sample.at, IDLE_SECONDS, lambda metrics: metrics.requests_total) == 0


class WvaV1(Wva):
    """V1; the parameter to sweep is `config.kv`."""

    def __init__(
        self, config: SaturationConfig | None = None, bounds: Bounds | None = None, *, stored: int | None = None
    ) -> None:
        self.config = config or SaturationConfig()
        super().__init__(f"wva-v1({self.config.kv:g})", bounds, stored)

    def analyzed(self, sample: FleetSample) -> tuple[int, str]:
        """Return one more or one fewer than report, unless a change is under way."""
        reporting = self.scrapes.seen(sample.at, PEAK_SECONDS)
        if self.emitted is not None and self.emitted != sample.replicas:
            return self.emitted, "Transition"
        if len(reporting) < len(sample.listed) or not reporting:
            return sample.replicas, "Transition"
        change = analyze(self.config, [self._load(uid, sample.at) for uid in reporting])
        if change < 0 and len(reporting) == 1:
            change = 0
        return len(reporting) + change, {1: "Saturated", 0: "Spare", -1: "Removable"}[change]

    def restarted(self) -> WvaV1:
        """Return it with the number that its status keeps."""
        return WvaV1(self.config, self.bounds, stored=self.emitted)

    def _load(self, uid: str, now: float) -> Load:
        def peak_kv(metrics: PodMetrics) -> float:
            return metrics.utilization

        def peak_queue(metrics: PodMetrics) -> float:
            return metrics.waiting

        kv = self.scrapes.peak(uid, now, PEAK_SECONDS, peak_kv)
        queue = self.scrapes.peak(uid, now, PEAK_SECONDS, peak_queue)
        return Load(kv or 0.0, queue or 0.0)
