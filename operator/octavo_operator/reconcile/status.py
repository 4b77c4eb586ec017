"""The whole `status` of an InferenceService from one pass. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from octavo_operator.plan import Owner, address
from octavo_operator.reconcile.conditions import RESOURCE_CONFLICT, Trouble, View, findings, merge
from octavo_operator.reconcile.scaling import Load


class Report(NamedTuple):
    """What one pass has to say."""

    generation: int
    view: View
    selector: str | None
    load: Load | None
    scaling: dict[str, Any] | None


def build_status(owner: Owner, report: Report, before: dict[str, Any]) -> dict[str, Any]:
    """Return the new status; equal to `before` when nothing changed. What a pass cannot know stays as it was."""
    workload = report.view.workload
    status: dict[str, Any] = {
        "observedGeneration": report.generation,
        "conditions": merge(findings(report.view), before.get("conditions") or [], report.generation, _now()),
        **_where(owner, report.view.trouble, before),
        "replicas": workload.total,
        "readyReplicas": workload.ready,
        "updatedReplicas": workload.updated,
    }
    if selector := report.selector or before.get("selector"):
        status["selector"] = selector
    if report.load is not None:
        status["kv"] = {"utilizationPercent": report.load.utilization_percent, "queueDepth": report.load.queue_depth}
    if scaling := report.scaling or before.get("scaling"):
        status["scaling"] = {**scaling, "desiredReplicas": workload.wanted}
    return status


def _where(owner: Owner, trouble: Trouble | None, before: dict[str, Any]) -> dict[str, Any]:
    """Return where clients find the service; nothing while its name may lead to somebody else's."""
    if trouble is None:
        return {"url": address(owner), "address": {"url": address(owner)}}
    if trouble.reason == RESOURCE_CONFLICT:
        return {}
    return {key: before[key] for key in ("url", "address") if key in before}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
