"""Knative's pod autoscaler (KPA) on concurrency.

Source: operators.md §2.1; knative/serving `pkg/autoscaler/scaling/autoscaler.go` and `config-autoscaler`. Chosen where
§2.1 is silent: concurrency is scraped from ready pods (running + waiting, as their queue-proxy counts), those that did
not answer are taken to be like the others, and what the activator holds is added; a window that is not full yet is
averaged over what there is; the last pod goes when the recommendation has been 0 for the grace period.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from octavo_operator.simulate.baselines.series import LOST_AFTER_PERIODS, Window
from octavo_operator.simulate.policy import Bounds, FleetSample, Removal, Wanted

TICK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class KpaConfig:
    """`config-autoscaler` with its defaults. `target` in concurrent requests a pod; windows and grace in seconds."""

    target: float = 100.0
    utilization: float = 0.70
    stable_seconds: float = 60.0
    panic_percent: float = 10.0
    panic_threshold: float = 2.0
    max_up_rate: float = 1000.0
    max_down_rate: float = 2.0
    burst_capacity: float = 200.0
    grace_seconds: float = 30.0

    @property
    def panic_seconds(self) -> float:
        """Return the panic window: a share of the stable one."""
        return self.stable_seconds * self.panic_percent / 100


class Kpa:
    """KPA; the parameter to sweep is `config.target`."""

    period_seconds = TICK_SECONDS
    scrape_seconds = TICK_SECONDS
    wakes = True  # the activator reports the first request at once
    removal = Removal.DRAIN

    def __init__(self, config: KpaConfig | None = None, bounds: Bounds | None = None) -> None:
        self.config, self.bounds = config or KpaConfig(), bounds or Bounds(low=0)
        self.name = f"knative-kpa({self.config.target:g})"
        self.excess_burst_capacity = 0
        """EBC of the last tick: negative means that the activator stays in the path and buffers."""
        self._concurrency = Window(self.config.stable_seconds)
        self._panic_since: float | None = None
        self._panic_pods = 0
        self._zero_since: float | None = None
        self._started = False

    def desired(self, sample: FleetSample) -> Wanted:
        """Run one tick."""
        ready = len(sample.ready)
        if not self._started:
            self._start(sample.at, ready)
        observed = self._observe(sample)
        if observed is None:
            return Wanted(self.bounds.clamp(sample.replicas), "NoData")
        self._concurrency.add(sample.at, observed)
        stable = self._concurrency.mean(sample.at) or 0.0
        panic = self._concurrency.mean(sample.at, self.config.panic_seconds) or 0.0
        pods, reason = self._scale(sample.at, ready, stable, panic)
        return self._to_zero(sample.at, self.bounds.clamp(pods), reason)

    def restarted(self) -> Kpa:
        """Return it without memory: with more than one ready pod it starts in panic mode, which never shrinks."""
        return Kpa(self.config, self.bounds)

    def _start(self, now: float, ready: int) -> None:
        self._started = True
        self._panic_since, self._panic_pods = (now if ready > 1 else None), ready

    def _observe(self, sample: FleetSample) -> float | None:
        max_age = self.scrape_seconds * LOST_AFTER_PERIODS
        reports = [metrics.requests for pod in sample.ready if (metrics := pod.reported(max_age)) is not None]
        held = sample.gateway.held_requests
        if not sample.ready:
            return float(held)
        return sum(reports) / len(reports) * len(sample.ready) + held if reports else None

    def _scale(self, now: float, ready: int, stable: float, panic: float) -> tuple[int, str]:
        config = self.config
        pods = max(1, ready)
        target = config.target * config.utilization
        want_stable, want_panic = math.ceil(stable / target), math.ceil(panic / target)
        low, high = math.floor(pods / config.max_down_rate), math.ceil(pods * config.max_up_rate)
        self.excess_burst_capacity = math.floor(ready * config.target - config.burst_capacity - panic)
        self._judge_panic(now, want_panic / pods >= config.panic_threshold)
        wanted = min(max(want_stable, low), high)
        if self._panic_since is None:
            return wanted, "Stable"
        self._panic_pods = max(self._panic_pods, wanted, min(max(want_panic, low), high))
        return self._panic_pods, "Panic"

    def _judge_panic(self, now: float, over: bool) -> None:
        if over:
            self._panic_since = now
        elif self._panic_since is not None and now - self._panic_since > self.config.stable_seconds:
            self._panic_since, self._panic_pods = None, 0

    def _to_zero(self, now: float, pods: int, reason: str) -> Wanted:
        if pods > 0:
            self._zero_since = None
            return Wanted(pods, reason)
        self._zero_since = now if self._zero_since is None else self._zero_since
        if now - self._zero_since < self.config.grace_seconds:
            return Wanted(1, "ZeroGrace")
        return Wanted(0, "Zero")
