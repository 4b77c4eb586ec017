"""AIBrix's APA: the mean use of a pod against a target, with a band and doubling as the limit.

Source: operators.md §2.5; vllm-project/aibrix `pkg/controller/podautoscaler`. The metric is KV utilisation with target
0.5, the documentation's example. §2.5 gives windows of 180 and 60 s for the KPA strategy; APA has one, as read 60 s.
§2.5 says two things of the cooldown window: as coded (the default here) a shrink takes the *least* recommendation of
300 s and growth the greatest of 0 s; as documented, like HPA's, a shrink takes the greatest. `as_documented` selects.
Pods that are not ready or terminate are not left out, and those that did not answer are as if they did not exist.
"""

from __future__ import annotations

import math
from typing import Final

from octavo_operator.simulate.baselines.series import LOST_AFTER_PERIODS, Window
from octavo_operator.simulate.policy import Bounds, FleetSample, Removal, Wanted

RESYNC_SECONDS: Final = 10.0
METRIC_WINDOW_SECONDS: Final = 60.0
DOWN_WINDOW_SECONDS: Final = 300.0
TOLERANCE: Final = 0.1
RATE: Final = 2.0
"""At most twice as many, at least half as many."""


def recommend(current: int, use: float, target: float) -> int:
    """Return APA's count for `current` replicas that are used `use` each on average."""
    ratio = use / target
    if ratio > 1 + TOLERANCE:
        return min(math.ceil(current * ratio), math.ceil(current * RATE))
    if ratio < 1 - TOLERANCE:
        return max(math.ceil(current * ratio), math.floor(current / RATE))
    return current


class Apa:
    """APA on KV utilisation; the parameter to sweep is `target` (0 … 1)."""

    period_seconds = RESYNC_SECONDS
    scrape_seconds = RESYNC_SECONDS
    wakes = False
    removal = Removal.TERMINATE

    def __init__(self, target: float = 0.5, bounds: Bounds | None = None, *, as_documented: bool = False) -> None:
        self.name = f"aibrix-apa{'-documented' if as_documented else ''}({target:g})"
        self._target, self._as_documented = target, as_documented
        bounds = bounds or Bounds()
        # Nothing in APA wakes a service from zero: zero pods have no metric.
        self._bounds = Bounds(max(1, bounds.low), bounds.high)
        self._use = Window(METRIC_WINDOW_SECONDS)
        self._recommended = Window(DOWN_WINDOW_SECONDS)

    def desired(self, sample: FleetSample) -> Wanted:
        """Run one resync."""
        max_age = self.scrape_seconds * LOST_AFTER_PERIODS
        values = [metrics.utilization for pod in sample.pods if (metrics := pod.reported(max_age)) is not None]
        if not values:
            return Wanted(self._bounds.clamp(sample.replicas), "NoMetrics")
        self._use.add(sample.at, sum(values) / len(values))
        use = self._use.mean(sample.at) or 0.0
        return self._stabilized(sample, self._bounds.clamp(recommend(sample.replicas, use, self._target)))

    def restarted(self) -> Apa:
        """Return it without memory."""
        return Apa(self._target, self._bounds, as_documented=self._as_documented)

    def _stabilized(self, sample: FleetSample, wanted: int) -> Wanted:
        self._recommended.add(sample.at, wanted)
        if wanted >= sample.replicas:  # the window of growing is 0 s: this recommendation alone
            return Wanted(wanted, "Grow" if wanted > sample.replicas else "WithinTolerance")
        window = self._recommended.values(sample.at)
        if self._as_documented:
            return Wanted(min(sample.replicas, int(max(window))), "ShrinkToGreatest")
        return Wanted(int(min(window)), "ShrinkToLeast")
