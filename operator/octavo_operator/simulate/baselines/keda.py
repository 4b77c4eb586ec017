"""SLO-driven KEDA: llm-d's control law on latency percentiles, as a ScaledObject drives it through an HPA.

Source: operators.md §2.8 (slo-aware) and §2.3 (activation, cooldown); llm-d
`docs/architecture/autoscaling/slo-aware.md`. Every 15 s a rule takes `s = min(max(p90 TTFT / SLO, p90 ITL / SLO), 2)`
over 1-minute rates, no traffic being 0, and the mean of 45 s. The law's count is the value of a composite metric with
AverageValue 1. Its defaults are the guide's SLOs: 3 s and 100 ms. Chosen where both are silent: the histograms are the
engines' (the measured fall-back, not a predictor); the trigger that is active, polled each 30 s, is any request at the
gateways (§2.3: held requests are what KEDA scales on from zero). A query that finds no scrape at all although pods are
ready fails, and without a fallback the HPA then holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from octavo_operator.simulate.baselines.hpa import (
    MILLI,
    SYNC_SECONDS,
    Behavior,
    Controller,
    Direction,
    Rule,
    external_average,
)
from octavo_operator.simulate.baselines.series import Scrapes, Window
from octavo_operator.simulate.policy import Bounds, FleetSample, Removal, Wanted

POLLING_SECONDS: Final = 30.0
COOLDOWN_SECONDS: Final = 300.0
RATE_SECONDS: Final = 60.0
MEAN_SECONDS: Final = 45.0
CLAMP: Final = 2.0
QUANTILE: Final = 0.9
BEHAVIOR: Final = Behavior(
    up=Direction(30.0, (Rule("Percent", 100, 60.0), Rule("Pods", 4, 60.0))),
    down=Direction(180.0, (Rule("Pods", 1, 120.0),)),
)


@dataclass(frozen=True, slots=True)
class SloConfig:
    """The SLOs in seconds, and the thresholds of the saturation signal."""

    ttft_seconds: float = 3.0
    itl_seconds: float = 0.1
    up: float = 0.55
    down: float = 0.40

    def at(self, up: float) -> SloConfig:
        """Return it with another upper threshold and the lower one in proportion."""
        return replace(self, up=up, down=self.down * up / self.up)


def law(config: SloConfig, saturation: float, provisioned: int, ready: int) -> int:
    """Return the count that the control law wants."""
    if saturation > config.up:
        credit = ready / provisioned if 0 < ready < provisioned else 1.0
        return provisioned + math.ceil(provisioned * (saturation * credit / config.up - 1) - 1e-9)
    if saturation < config.down:
        return provisioned - math.floor(provisioned * (1 - saturation / config.down) + 1e-9)
    return provisioned


class KedaSlo:
    """The law through KEDA; the parameter to sweep is `config.at(up)`."""

    period_seconds = SYNC_SECONDS
    scrape_seconds = SYNC_SECONDS
    wakes = False  # polled
    removal = Removal.TERMINATE

    def __init__(self, config: SloConfig | None = None, bounds: Bounds | None = None) -> None:
        self.config, self.bounds = config or SloConfig(), bounds or Bounds()
        self.name = f"keda-slo({self.config.up:g})"
        self._scrapes = Scrapes(RATE_SECONDS, SYNC_SECONDS)
        self._saturation = Window(MEAN_SECONDS)
        # The generated HPA never goes below one; zero is KEDA's own.
        self._hpa = Controller(Bounds(max(1, self.bounds.low), self.bounds.high), BEHAVIOR)
        self._next_poll = float("-inf")
        self._last_active: float | None = None

    def saturation(self, sample: FleetSample) -> float:
        """Evaluate the rule over the scrapes so far and return the smoothed signal, 0 … 2."""
        ttft = self._scrapes.quantile(QUANTILE, sample.at, RATE_SECONDS, lambda metrics: metrics.ttft)
        itl = self._scrapes.quantile(QUANTILE, sample.at, RATE_SECONDS, lambda metrics: metrics.itl)
        worst = max(_number(ttft) / self.config.ttft_seconds, _number(itl) / self.config.itl_seconds)
        self._saturation.add(sample.at, min(worst, CLAMP))
        return self._saturation.mean(sample.at) or 0.0

    def desired(self, sample: FleetSample) -> Wanted:
        """Run one sync of the HPA, and KEDA's own poll if it is due."""
        self._scrapes.add(sample)
        failed = bool(sample.ready) and not self._scrapes.current(sample)
        saturation = 0.0 if failed else self.saturation(sample)
        polled = self._poll(sample)
        if polled is not None:
            return polled
        if sample.replicas == 0:
            return Wanted(0, "Inactive")
        if failed:
            return self._hpa.hold(sample.at, sample.replicas, "NoMetrics")
        wanted = law(self.config, saturation, sample.replicas, len(sample.ready))
        recommended = external_average(MILLI, sample.replicas, wanted * MILLI)
        return self._hpa.apply(sample.at, sample.replicas, recommended)

    def restarted(self) -> KedaSlo:
        """Return it without memory; the time of its last activity is in the resource's status."""
        fresh = KedaSlo(self.config, self.bounds)
        fresh._last_active = self._last_active
        return fresh

    def _poll(self, sample: FleetSample) -> Wanted | None:
        """Return KEDA's own move between 0 and 1, or None if there is none."""
        if self._last_active is None:
            self._last_active = sample.at
        if sample.at < self._next_poll:
            return None
        self._next_poll = sample.at + POLLING_SECONDS
        if sample.gateway.requests:
            self._last_active = sample.at
            return Wanted(max(1, self.bounds.low), "Activated") if sample.replicas == 0 else None
        if self.bounds.low == 0 and sample.replicas > 0 and sample.at - self._last_active >= COOLDOWN_SECONDS:
            return Wanted(0, "Cooldown")
        return None


def _number(value: float) -> float:
    return 0.0 if math.isnan(value) else value
