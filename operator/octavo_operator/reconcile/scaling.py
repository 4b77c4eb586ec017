"""The autoscaler of one InferenceService at work: scrape, decide, mark pods, and say how many replicas may go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from octavo_operator import metrics
from octavo_operator.api.spec import InferenceServiceSpec
from octavo_operator.autoscale.actuate import Actuation, actuate, pod_patch
from octavo_operator.autoscale.collect import Collector
from octavo_operator.autoscale.pods import observe_pod
from octavo_operator.autoscale.policy import policy_from_spec
from octavo_operator.autoscale.state import PERIOD_SECONDS, ServiceState, SteadyClock
from octavo_operator.autoscale.types import Decision, Held, PodSample, PodState
from octavo_operator.kube import resources
from octavo_operator.kube.client import Client, Object
from octavo_operator.reconcile.conditions import ScalingView

KV_WRITE_SECONDS: Final = 30
KV_ROUNDING_PERCENT: Final = 5


class Load(NamedTuple):
    """What `status.kv` says."""

    utilization_percent: int
    queue_depth: int


class Scaler:
    """The memory and the hands of one service's scaling. Scrapes in every mode; decides in Builtin only."""

    def __init__(self, client: Client, collector: Collector, clock: SteadyClock, namespace: str) -> None:
        """Remember nothing yet: the first `due` period builds the state from the live count."""
        self._client = client
        self._collector = collector
        self._clock = clock
        self._namespace = namespace
        self._state: ServiceState | None = None
        self._builtin = False
        self._next_period = float("-inf")
        self._samples: dict[str, PodSample] = {}
        self._load: tuple[Load, float] | None = None

    @property
    def target(self) -> int | None:
        """The built-in autoscaler's last word in this process, `None` when it has not spoken."""
        return self._state.desired if self._builtin and self._state is not None else None

    @property
    def status(self) -> dict[str, Any] | None:
        """What to write as `status.scaling`, `None` when this process has nothing to say."""
        return self._state.scaling_status if self._builtin and self._state is not None else None

    def seconds_to_period(self) -> float:
        """Return how long until the next period is due."""
        return max(0.0, self._next_period - time.monotonic())

    async def period(
        self, spec: InferenceServiceSpec, resource: Object, live: int, pods: Sequence[Object]
    ) -> Decision | None:
        """Run one period if it is due: scrape, and in Builtin mode decide. Return a new decision.

        `live` is the live number of replicas. Leaving Builtin forgets: coming back starts
        from the live count, and nothing shrinks before a full window was seen.
        """
        builtin = spec.builtin and not spec.suspend
        if builtin != self._builtin:
            self._builtin, self._state, self._next_period = builtin, None, float("-inf")
        if self.seconds_to_period() > 0:
            return None
        self._next_period = time.monotonic() + PERIOD_SECONDS
        observed = [observe_pod(pod) for pod in pods]
        scrapes = await self._collector.collect(observed)
        now = self._clock()
        if self._state is None:
            self._state = ServiceState(desired=live, now=now, scaling=(resource.get("status") or {}).get("scaling"))
        if not builtin:
            self._state.observe(scrapes.values(), observed, now)
            self._samples = self._state.samples
            return None
        decision = self._state.advance(policy_from_spec(resource["spec"]), observed, scrapes, Held(), now)
        self._samples = self._state.samples
        if decision.direction != "Hold":
            metrics.DECISIONS.labels(decision.direction, decision.branch).inc()
        return decision

    def actuation(
        self, spec: InferenceServiceSpec, wanted: int, live: int, pods: Sequence[Object], *, rolling: bool
    ) -> Actuation:
        """Return the next step from `live` replicas towards `wanted`; a suspended service goes at once."""
        if spec.suspend:
            return Actuation(wanted)
        return actuate(
            desired=wanted,
            replicas=live,
            pods=[observe_pod(pod) for pod in pods],
            samples=self._samples,
            drain_timeout_seconds=spec.rollout.drain_timeout_seconds,
            now=self._clock(),
            rolling=rolling,
        )

    async def mark(self, step: Actuation) -> None:
        """Set and take back the pods' marks; they must be there before the replicas are lowered."""
        for action in step.actions:
            patch = pod_patch(action, self._clock())
            # The UID is a precondition: a pod of the same name that came since is not the one that was chosen.
            patch["metadata"]["uid"] = action.uid
            await self._client.merge(resources.PODS, self._namespace, action.pod, patch)

    def load(self, pods: Sequence[Object]) -> Load | None:
        """Return the load of all pods together, rounded, and the same as before for at least 30 s."""
        now = time.monotonic()
        if self._load is not None and now - self._load[1] < KV_WRITE_SECONDS:
            return self._load[0]
        serving = {pod.uid for pod in map(observe_pod, pods) if pod.state is PodState.READY}
        fresh = _load([sample for uid, sample in self._samples.items() if uid in serving])
        if fresh is not None:
            self._load = (fresh, now)
        elif not serving:
            self._load = None
        return self._load[0] if self._load is not None else None

    def view(self, spec: InferenceServiceSpec) -> ScalingView | None:
        """Return what the conditions say, with the limit of the last decision that was worth writing."""
        if not self._builtin or self._state is None or not self._state.moments:
            return None
        last = self._state.scaling_status.get("lastDecision") or {}
        now = self._state.moments[-1].estimate
        return ScalingView(
            metrics_available=now.metrics_available if now.ready_pods else None,
            metrics_message=f"{now.reporting_pods} of {now.ready_pods} ready pods report",
            limited_by=last.get("limitedBy", "None"),
            dry_run=spec.autoscaling is not None and spec.autoscaling.dry_run,
        )


def _load(samples: Sequence[PodSample]) -> Load | None:
    complete = [sample for sample in samples if sample.kv is not None and sample.queue is not None]
    total = sum(sample.kv.total for sample in complete if sample.kv is not None)
    if not total:
        return None
    active = sum(sample.kv.active for sample in complete if sample.kv is not None)
    waiting = sum(sample.queue.waiting for sample in complete if sample.queue is not None)
    steps = round(100 * active / total / KV_ROUNDING_PERCENT)
    return Load(steps * KV_ROUNDING_PERCENT, waiting)
