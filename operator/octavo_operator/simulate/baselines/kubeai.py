"""KubeAI's autoscaler: the ten-minute mean of active requests.

Source: operators.md §2.4; substratusai/kubeai `internal/modelautoscaler`, `internal/movingaverage` and
`internal/modelscaler`. §2.4 says "shrink only after ceil(30/10) consecutive lower results"; the scaler lets that many
pass and acts on the next, and does not count afresh after it shrank: this does the same. Active requests are all at the
proxies, held ones included. The mean is zero-seeded; what a restart finds in the ConfigMap is the last mean, with which
the window is filled.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from octavo_operator.simulate.policy import Bounds, FleetSample, Removal, Wanted

INTERVAL_SECONDS: Final = 10.0
WINDOW_SECONDS: Final = 600.0


class KubeAi:
    """KubeAI; the parameter to sweep is `target_requests` (active requests a pod)."""

    period_seconds = INTERVAL_SECONDS
    scrape_seconds = INTERVAL_SECONDS
    wakes = True  # the first request itself scales from zero to one
    removal = Removal.TERMINATE

    def __init__(
        self,
        target_requests: float = 100.0,
        bounds: Bounds | None = None,
        *,
        scale_down_delay_seconds: float = 30.0,
        stored_mean: float = 0.0,
    ) -> None:
        self.name = f"kubeai({target_requests:g})"
        self._target, self._bounds, self._delay = target_requests, bounds or Bounds(low=0), scale_down_delay_seconds
        rounds = int(WINDOW_SECONDS / INTERVAL_SECONDS)
        self._active: deque[float] = deque([stored_mean] * rounds, maxlen=rounds)
        self._lower_results = 0

    @property
    def mean(self) -> float:
        """Return the mean of active requests over the window."""
        return sum(self._active) / len(self._active)

    def desired(self, sample: FleetSample) -> Wanted:
        """Run one round."""
        if sample.replicas == 0:
            return Wanted(self._bounds.clamp(1 if sample.gateway.held_requests else 0), "FirstRequest")
        if not sample.listed:
            return Wanted(sample.replicas, "NoEndpoints")
        self._active.append(sample.gateway.requests)
        wanted = self._bounds.clamp(math.ceil(self.mean / self._target))
        if wanted >= sample.replicas:
            self._lower_results = 0
            return Wanted(wanted, "MovingAverage")
        if self._lower_results < math.ceil(self._delay / INTERVAL_SECONDS):
            self._lower_results += 1
            return Wanted(sample.replicas, "ScaleDownDelay")
        return Wanted(wanted, "MovingAverage")

    def restarted(self) -> KubeAi:
        """Return it with its window filled from the stored mean."""
        return KubeAi(self._target, self._bounds, scale_down_delay_seconds=self._delay, stored_mean=self.mean)
