"""Why a pod is not running, in one reason and one sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from octavo_operator.api.spec import GPU_RESOURCES
from octavo_operator.names import ENGINE_CONTAINER

_IMAGE_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_MESSAGE_LENGTH: Final = 1000


class Diagnosis(NamedTuple):
    """What keeps a pod from running; `engine` when the engine itself failed, and so its model is not loaded."""

    reason: str
    message: str
    engine: bool = False


def diagnose(pods: Iterable[dict[str, Any]], deployment: dict[str, Any] | None) -> Diagnosis | None:
    """Return what keeps the service's pods from running: the worst finding, or `None` when nothing is wrong."""
    found = [each for pod in pods if (each := _pod(pod)) is not None]
    if (refused := _refused(deployment)) is not None:
        found.append(refused)
    order = list(_ORDER)
    return min(found, key=lambda each: (order.index(each.reason), each.message), default=None)


_ORDER: Final = (
    "PodsRefused",
    "OutOfMemory",
    "EngineCrashing",
    "EngineFailed",
    "ImagePullFailed",
    "ContainerConfigInvalid",
    "InsufficientGPU",
    "Unschedulable",
    "SidecarFailed",
)
"""What a person should look at first: what will not heal by waiting."""


def _pod(pod: dict[str, Any]) -> Diagnosis | None:
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") or status.get("phase") == "Succeeded":
        return None
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            text = _sentence(condition.get("message") or "no node takes the pod")
            gpu = any(f"Insufficient {name}" in text for name in GPU_RESOURCES)
            return Diagnosis("InsufficientGPU" if gpu else "Unschedulable", text)
    states = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return next((each for state in states if (each := _container(state)) is not None), None)


def _container(container: dict[str, Any]) -> Diagnosis | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    if reason in _IMAGE_REASONS:
        return Diagnosis("ImagePullFailed", _sentence(waiting.get("message") or f"{container['image']}: {reason}"))
    if reason in _CONFIG_REASONS:
        return Diagnosis("ContainerConfigInvalid", _sentence(waiting.get("message") or reason))
    ended = (container.get("state") or {}).get("terminated")
    if ended is None and not container.get("ready"):
        ended = (container.get("lastState") or {}).get("terminated")
    if ended is None or ended.get("exitCode") == 0:
        return None
    return _ended(container, ended, crashing=reason == "CrashLoopBackOff")


def _ended(container: dict[str, Any], ended: dict[str, Any], *, crashing: bool) -> Diagnosis:
    if container["name"] != ENGINE_CONTAINER:
        return Diagnosis("SidecarFailed", f"container {container['name']}: {_last_words(ended)}")
    if ended.get("reason") == "OOMKilled":
        limit = "raise resources.limits.memory or lower engine.kvCache.memory"
        return Diagnosis("OutOfMemory", f"the engine used more memory than its limit: {limit}", engine=True)
    return Diagnosis("EngineCrashing" if crashing else "EngineFailed", _last_words(ended), engine=True)


def _last_words(ended: dict[str, Any]) -> str:
    """Return the last line the container wrote before it ended, or its exit code."""
    lines = [line.strip() for line in (ended.get("message") or "").splitlines() if line.strip()]
    return _sentence(lines[-1]) if lines else f"exit code {ended.get('exitCode')} and no last words in its log"


def _refused(deployment: dict[str, Any] | None) -> Diagnosis | None:
    """Return why the API server refuses the pods: a quota, Pod Security, a missing service account."""
    for condition in ((deployment or {}).get("status") or {}).get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return Diagnosis("PodsRefused", _sentence(condition.get("message") or condition.get("reason") or ""))
    return None


def _sentence(text: str) -> str:
    return " ".join(text.split())[:_MESSAGE_LENGTH]
