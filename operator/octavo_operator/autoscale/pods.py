"""A pod manifest as the autoscaler sees it: which of them serve, start, cannot start, or go."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from octavo_engine import contract

from .types import Pod, PodState


def parse_time(text: object) -> float | None:
    """Return an RFC 3339 time in Unix seconds, or None if `text` is none."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def format_time(seconds: float) -> str:
    """Return Unix seconds as RFC 3339 in UTC, whole seconds, as Kubernetes writes them."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def observe_pod(manifest: Mapping[str, Any]) -> Pod:
    """Return the pod of a manifest (a `dict` as the API server sends it, `status` possibly empty)."""
    metadata: Mapping[str, Any] = manifest["metadata"]
    status: Mapping[str, Any] = manifest.get("status") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or []}
    ready: Mapping[str, Any] = conditions.get("Ready") or {}
    scheduled: Mapping[str, Any] = conditions.get("PodScheduled") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    mark = annotations.get(contract.ANNOTATION_CORDONED)
    is_ready = ready.get("status") == "True"
    turned = parse_time(ready.get("lastTransitionTime"))
    return Pod(
        uid=metadata["uid"],
        name=metadata["name"],
        state=_state(metadata, status, is_ready, scheduled),
        created_at=parse_time(metadata.get("creationTimestamp")) or 0.0,
        ip=status.get("podIP") or None,
        scheduled=bool((manifest.get("spec") or {}).get("nodeName")) or scheduled.get("status") == "True",
        ready_at=turned if is_ready else None,
        not_ready_since=None if is_ready else turned,
        cordoned=mark is not None,
        cordoned_at=parse_time(mark),
    )


def _state(
    metadata: Mapping[str, Any], status: Mapping[str, Any], is_ready: bool, scheduled: Mapping[str, Any]
) -> PodState:
    # The order matters: a pod being deleted stays Ready until its endpoints are gone, and must count no more.
    if status.get("phase") in ("Failed", "Succeeded"):
        return PodState.ENDED
    if metadata.get("deletionTimestamp"):
        return PodState.TERMINATING
    if is_ready:
        return PodState.READY
    if scheduled.get("status") == "False" and scheduled.get("reason") in ("Unschedulable", "SchedulingGated"):
        return PodState.UNSCHEDULABLE
    return PodState.STARTING
