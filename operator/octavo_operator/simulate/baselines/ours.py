"""Octavo's own autoscaler behind the same interface: `autoscale.ServiceState`, unmodified, on its production types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.autoscale import (
    PERIOD_SECONDS,
    Decision,
    Held,
    Pod,
    Policy,
    Queue,
    Scrape,
    ScrapeFailure,
    ServiceState,
)
from octavo_operator.autoscale.types import Learned, PodSample, PodState
from octavo_operator.simulate.policy import FleetSample, PodMetrics, Removal, Wanted


class Octavo:
    """The built-in autoscaler: learn, estimate, decide as the operator's leader runs them each period.

    The parameter to sweep is `policy.target_utilization_percent` (with `scale_down.utilization_percent` below it).
    What it wants goes to `autoscale.actuate` as `desired`, with `samples`; never straight to the Deployment.
    """

    period_seconds = float(PERIOD_SECONDS)
    scrape_seconds = float(PERIOD_SECONDS)
    wakes = True
    removal = Removal.CORDON

    def __init__(self, policy: Policy, *, status: Mapping[str, Any] | None = None) -> None:
        """Take the service's policy, and its `status.scaling` as an earlier process left it, if one did."""
        self.policy = policy
        self.name = "octavo"
        self.last: Decision | None = None
        """The latest decision, with its branch and inputs."""
        self._status = dict(status or {})
        self._state: ServiceState | None = None
        self._scraped: dict[str, float] = {}

    @property
    def samples(self) -> Mapping[str, PodSample]:
        """Return the pods' last valid samples by UID, as `actuate` takes them."""
        return {} if self._state is None else self._state.samples

    @property
    def learned(self) -> Learned:
        """Return what was learned of a pod's capacity and of cold starts."""
        return Learned() if self._state is None else self._state.learned

    def desired(self, sample: FleetSample) -> Wanted:
        """Run one period."""
        pods = [pod.pod for pod in sample.pods if not pod.ghost]
        if self._state is None:
            self._state = ServiceState(desired=sample.replicas, now=sample.at, scaling=self._status)
        gateway = sample.gateway
        held = Held(gateway.held_requests, gateway.held_blocks)
        self.last = self._state.advance(self.policy, pods, self._scrapes(sample), held, sample.at)
        return Wanted(self.last.desired, self.last.reason)

    def restarted(self) -> Octavo:
        """Return it as a new leader starts: with `status.scaling`, and no window."""
        status = self._status if self._state is None else self._state.scaling_status
        return Octavo(self.policy, status=status)

    def _scrapes(self, sample: FleetSample) -> dict[str, Scrape]:
        """Return this period's scrape of every pod that the collector would ask."""
        scrapes: dict[str, Scrape] = {}
        for pod in sample.pods:
            if pod.ghost or pod.pod.state not in (PodState.READY, PodState.STARTING):
                continue
            uid, metrics = pod.pod.uid, pod.metrics
            if metrics is None or self._scraped.get(uid) == metrics.at or pod.age_seconds > self.scrape_seconds:
                scrapes[uid] = ScrapeFailure(uid, sample.at, "TimeoutError: the pod did not answer")
            else:
                scrapes[uid] = _sample(pod.pod, metrics)
        self._scraped = {pod.pod.uid: pod.metrics.at for pod in sample.pods if pod.metrics is not None}
        return scrapes


def _sample(pod: Pod, metrics: PodMetrics) -> PodSample:
    queue = Queue(metrics.running, metrics.waiting, metrics.queue_tokens, round(metrics.oldest_wait_seconds * 1000))
    return PodSample(pod.uid, metrics.at, metrics.kv, queue)
