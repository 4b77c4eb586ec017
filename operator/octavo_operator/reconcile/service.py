"""One InferenceService: observe, plan, apply the difference, say so. Level-based; runs again after any interruption."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from typing import Any, Final, NamedTuple

import aiohttp
from pydantic import ValidationError

from octavo_operator import metrics
from octavo_operator.api.spec import InferenceServiceSpec
from octavo_operator.autoscale.collect import Collector
from octavo_operator.autoscale.state import SteadyClock
from octavo_operator.kube import resources
from octavo_operator.kube.client import NAMESPACE_TERMINATING, ApiError, Client, Object
from octavo_operator.plan import Children, EngineDefaults, Observed, Owner, kept_defaults, plan, selector_text
from octavo_operator.plan.replicas import live_replicas, mode_of
from octavo_operator.reconcile.apply import Applied, Applier
from octavo_operator.reconcile.conditions import Trouble, View, Workload
from octavo_operator.reconcile.diagnose import diagnose
from octavo_operator.reconcile.observe import Observation, engine_starting, observe, workload
from octavo_operator.reconcile.rollouts import Rollouts
from octavo_operator.reconcile.scaling import Scaler
from octavo_operator.reconcile.status import Report, build_status

RESYNC_SECONDS: Final = 300.0
LEAST_SECONDS: Final = 0.5
BACKOFF_SECONDS: Final = (1.0, 60.0)
FAILURES_TO_TELL: Final = 3
"""Failed passes in a row after which the status says so, whatever the failure: one alone may be a hiccup."""
RETRY_SECONDS: Final = 6.0
"""What sends us no event: somebody else's object in the way, another service whose turn it is."""

_LOG: Final = logging.getLogger(__name__)
_TRANSIENT: Final = (aiohttp.ClientError, TimeoutError, ConnectionError)


class Tools(NamedTuple):
    """What every service's reconciler shares."""

    client: Client
    collector: Collector
    clock: SteadyClock
    defaults: EngineDefaults
    rollouts: Rollouts


class Reconciler:
    """Brings one InferenceService to its wanted state, as often as it is called."""

    def __init__(self, tools: Tools, namespace: str, name: str, uid: str) -> None:
        """Serve the resource with `uid`; one of the same name that comes after it has a reconciler of its own."""
        self._tools = tools
        self._owner = Owner(name, namespace, uid)
        self._scaler = Scaler(tools.client, tools.collector, tools.clock, namespace)
        self._applier = Applier(tools.client, uid)
        self._failures = 0
        self._resync_at = 0.0
        self._pods: frozenset[str] = frozenset()

    def forget(self) -> None:
        """Give back what other services may wait for."""
        self._tools.rollouts.rolls(f"{self._owner.namespace}/{self._owner.name}", rolling=False)

    @property
    def pods(self) -> frozenset[str]:
        """The UIDs of the pods seen in the last pass."""
        return self._pods

    async def run_once(self, *, woken: bool) -> float:
        """Make one pass; return the seconds after which the next one is due without any event.

        `woken`: something happened to the resource or its children, so all of them are read again.
        """
        began = time.monotonic()
        if woken or began >= self._resync_at:
            self._applier.forget()
            self._resync_at = began + RESYNC_SECONDS * random.uniform(0.8, 1.0)
        try:
            delay = await self._pass()
            self._failures = 0
        except ApiError as error:
            delay = self._failed(error.reason, error, again_at_once=error.status == 409)
        except _TRANSIENT as error:
            delay = self._failed(type(error).__name__, error)
        metrics.RECONCILE_SECONDS.observe(time.monotonic() - began)
        metrics.LAST_RECONCILE.set_to_current_time()
        return delay

    def _failed(self, reason: str, error: Exception, *, again_at_once: bool = False) -> float:
        """Log and count; return a delay that grows with every failure in a row, with jitter."""
        metrics.RECONCILE_FAILURES.labels(reason).inc()
        self._failures += 1
        if self._failures >= FAILURES_TO_TELL:
            self.forget()
        first, last = BACKOFF_SECONDS
        delay = min(last, first * 2.0 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1.0)
        if again_at_once and self._failures == 1:
            return 0.0
        owner = self._owner
        _LOG.warning("%s/%s: %s: %s; again in %.1f s", owner.namespace, owner.name, reason, error, delay)
        return delay

    def _seconds_to_resync(self) -> float:
        return max(0.0, self._resync_at - time.monotonic())

    async def _pass(self) -> float:
        client, owner = self._tools.client, self._owner
        resource = await client.get(resources.INFERENCE_SERVICES, owner.namespace, owner.name)
        if (
            resource is None
            or resource["metadata"]["uid"] != owner.uid
            or resource["metadata"].get("deletionTimestamp")
        ):
            return self._seconds_to_resync()
        try:
            spec = InferenceServiceSpec.model_validate(resource["spec"])
        except ValidationError as error:
            await self._refuse(resource, Trouble("InvalidSpec", _sentence(error)))
            return self._seconds_to_resync()
        try:
            return await self._converge(resource, spec)
        except ApiError as error:
            if error.reason == NAMESPACE_TERMINATING:  # Nothing can be made there, and we go with it.
                return self._seconds_to_resync()
            refused = 400 <= error.status < 500 and error.status not in (404, 409, 429)
            if refused or self._failures + 1 >= FAILURES_TO_TELL:
                await self._refuse(resource, Trouble("ApplyFailed", str(error)))
            raise

    async def _converge(self, resource: Object, spec: InferenceServiceSpec) -> float:
        """Observe, decide, plan, mark, apply, report: one line each."""
        seen = await observe(self._tools.client, self._owner.namespace, self._owner.name)
        self._pods = frozenset(pod["metadata"]["uid"] for pod in seen.pods)
        live = live_replicas(seen.deployment)
        if live is not None:
            await self._scaler.period(spec, resource, live.running, seen.pods)
        defaults, waits_for = self._turn(spec, seen)
        wanted = plan(self._owner, spec, defaults, Observed(live, self._scaler.target))
        children = await self._actuate(spec, wanted, seen)
        applied = await self._applier.apply(children, seen.deployment)
        if applied.trouble is not None and not self._has_defaults(applied.deployment, spec):
            self.forget()  # It has its turn and cannot use it, perhaps for ever.
        await self._write_scale(wanted)
        await self._report(resource, spec, wanted, seen, applied, waits_for)
        if applied.trouble is not None or waits_for is not None:
            return RETRY_SECONDS
        return max(LEAST_SECONDS, self._scaler.seconds_to_period()) if seen.pods else self._seconds_to_resync()

    def _turn(self, spec: InferenceServiceSpec, seen: Observation) -> tuple[EngineDefaults, str | None]:
        """Return the defaults to plan with, and whom a service waits for that new defaults would roll."""
        defaults, rollouts = self._tools.defaults, self._tools.rollouts
        service = f"{self._owner.namespace}/{self._owner.name}"
        kept = None if seen.deployment is None or spec.suspend else kept_defaults(seen.deployment, spec, defaults)
        if seen.deployment is None or kept is None:
            rollouts.rolls(service, rolling=False)
            return defaults, None
        if kept == defaults:
            state = workload(seen.deployment, seen.deployment["spec"].get("replicas", 1))
            rollouts.rolls(service, rolling=state.holds_turn)
            return defaults, None
        waits_for = rollouts.admit(service)
        return (defaults if waits_for is None else kept), waits_for

    def _has_defaults(self, deployment: Object | None, spec: InferenceServiceSpec) -> bool:
        defaults = self._tools.defaults
        return deployment is not None and kept_defaults(deployment, spec, defaults) == defaults

    async def _actuate(self, spec: InferenceServiceSpec, wanted: Children, seen: Observation) -> Children:
        """Cordon before shrinking: return the children with the number of replicas that may be written now."""
        if seen.deployment is None:
            return wanted
        live = seen.deployment["spec"].get("replicas", 1)
        state = workload(seen.deployment, live)
        rolling = not state.rolled_out and not state.stuck
        step = self._scaler.actuation(spec, wanted.replicas.wanted, live, seen.pods, rolling=rolling)
        await self._scaler.mark(step)
        return wanted.with_replicas(step.replicas)

    async def _write_scale(self, wanted: Children) -> None:
        """Write the live count into `spec.replicas` where a mode needs it and nobody else has: through `/scale`."""
        if (count := wanted.replicas.write_scale) is not None:
            patch = {"spec": {"replicas": count}}
            owner = self._owner
            await self._tools.client.merge(
                resources.INFERENCE_SERVICES, owner.namespace, owner.name, patch, subresource="scale"
            )

    async def _report(
        self,
        resource: Object,
        spec: InferenceServiceSpec,
        wanted: Children,
        seen: Observation,
        applied: Applied,
        waits_for: str | None,
    ) -> None:
        view = View(
            suspended=spec.suspend,
            mode=mode_of(spec),
            workload=workload(applied.deployment, wanted.replicas.wanted),
            pods_starting=engine_starting(seen.pods),
            trouble=applied.trouble,
            diagnosis=diagnose(seen.pods, applied.deployment),
            scaling=self._scaler.view(spec),
            waits_for=waits_for,
        )
        selector = selector_text(self._owner.name, wanted.deployment)
        load = self._scaler.load(seen.pods)
        report = Report(resource["metadata"]["generation"], view, selector, load, self._scaler.status)
        await self._write_status(resource, build_status(self._owner, report, resource.get("status") or {}))

    async def _refuse(self, resource: Object, trouble: Trouble) -> None:
        """Say why nothing was changed; what runs goes on running."""
        before = resource.get("status") or {}
        workload_before = Workload(
            wanted=before.get("replicas", 0),
            total=before.get("replicas", 0),
            updated=before.get("updatedReplicas", 0),
            ready=before.get("readyReplicas", 0),
        )
        view = View(suspended=False, mode="Fixed", workload=workload_before, trouble=trouble)
        report = Report(resource["metadata"]["generation"], view, None, None, None)
        await self._write_status(resource, build_status(self._owner, report, before))

    async def _write_status(self, resource: Object, status: dict[str, Any]) -> None:
        if status != (resource.get("status") or {}):
            await self._tools.client.replace_status(resources.INFERENCE_SERVICES, {**resource, "status": status})


async def serve(reconciler: Reconciler, wake: asyncio.Event) -> None:
    """Run the reconciler for ever: at once, after every event, and when a pass asked for the next one."""
    woken = True
    while True:
        wake.clear()
        delay = await reconciler.run_once(woken=woken)
        try:
            await asyncio.wait_for(wake.wait(), delay)
            woken = True
        except TimeoutError:
            woken = False


def _sentence(error: ValidationError) -> str:
    """Return the first few problems of a stored spec that today's schema would refuse."""
    problems = json.loads(error.json(include_url=False, include_context=False))
    return "; ".join(f"spec.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in problems[:3])
