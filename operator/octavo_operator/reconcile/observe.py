"""Read what exists for one InferenceService, and put it into numbers."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from octavo_operator import names
from octavo_operator.kube import resources
from octavo_operator.kube.client import Client, Object
from octavo_operator.reconcile.conditions import Workload

_STUCK: Final = ("Progressing", "False", "ProgressDeadlineExceeded")
_COMPLETED: Final = ("Progressing", "True", "NewReplicaSetAvailable")


class Observation(NamedTuple):
    """The live Deployment, if there is one, and the engine pods."""

    deployment: Object | None
    pods: list[Object]


async def observe(client: Client, namespace: str, name: str) -> Observation:
    """Read the Deployment and the engine pods of the service `name`."""
    deployment, pods = await asyncio.gather(
        client.get(resources.DEPLOYMENTS, namespace, names.derived(name)),
        client.find(resources.PODS, namespace, names.selector(name)),
    )
    return Observation(deployment, pods)


def workload(deployment: Object | None, wanted: int) -> Workload:
    """Return the Deployment in numbers. While its controller lags behind, nothing counts as updated."""
    if deployment is None:
        return Workload(wanted, settled=False)
    status = deployment.get("status") or {}
    conditions = [(each["type"], each["status"], each.get("reason")) for each in status.get("conditions") or []]
    settled = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return Workload(
        wanted=wanted,
        total=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0) if settled else 0,
        ready=status.get("readyReplicas", 0),
        settled=settled,
        stuck=_STUCK in conditions,
        completed=_COMPLETED in conditions,
    )


def engine_starting(pods: list[Object]) -> bool:
    """Whether an engine container runs that has not become ready yet."""
    return any(
        state["name"] == names.ENGINE_CONTAINER and "running" in (state.get("state") or {}) and not state.get("ready")
        for pod in pods
        for state in (pod.get("status") or {}).get("containerStatuses") or []
    )
