"""What happens to a fleet in the tests here and, longer or with the real model, in the acceptance runs."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from octavo_engine import contract
from tests.cluster.waiting import wait_until

from . import audit
from .fleet import Fleet, InferenceService, Object, names_of
from .load import Load, Stream, broken, finish

SLOW = "scripted://?prefill=8000&step=40ms&blocks=512&eos=0"
AUTOSCALED = {"minReplicas": 1, "maxReplicas": 4}


class GrowAndShrink(NamedTuple):
    """Decisions as the status shows them; seconds since the load began (`one_again`: since it ended)."""

    up: dict[str, Any]
    down: dict[str, Any]
    two_ready: float
    load_seconds: float
    one_again: float
    streams: int
    cut: int
    tokens: int


class IdleMinute(NamedTuple):
    """Everything that the operator's ServiceAccount wrote: its Lease, and what else."""

    lease: int
    other: list[str]


def grow_and_shrink(
    service: InferenceService, load: Load, *, requests: int, max_tokens: int, **body: Any
) -> GrowAndShrink:
    """Let 1 replica become 2 under `requests` long streams, and 1 again once they have ended."""
    assert len(service.ready_pods()) == 1
    began = time.monotonic()
    streams = load.stream(service.url, requests, max_tokens=max_tokens, **body)
    up = service.eventually(lambda: decision(service, "Up"), "a decision to grow", 180)
    service.eventually(lambda: len(service.ready_pods()) == 2, "the second replica is ready", 180)
    two_ready = time.monotonic() - began
    finish(streams, 900)
    ended = time.monotonic()
    down = service.eventually(lambda: decision(service, "Down"), "a decision to shrink", 300)
    service.wait_replicas(1, 180)
    history = service.status()["scaling"]["history"]
    assert up in history
    assert down in history
    return GrowAndShrink(
        up=up,
        down=down,
        two_ready=two_ready,
        load_seconds=ended - began,
        one_again=time.monotonic() - ended,
        streams=len(streams),
        cut=len(broken(streams)),
        tokens=sum(stream.completion_tokens or 0 for stream in streams),
    )


def moved_by_scale(service: InferenceService) -> str:
    """Give the service to an external scaler, let that move it from 1 to 2 through `/scale`; return what happened."""
    service.patch({"autoscaling": {"mode": "External"}})
    service.eventually(lambda: _works_as(service, "External"), "works in mode External")
    service.eventually(lambda: service.document()["spec"].get("replicas"), "the live count is in spec.replicas")
    before = len(service.ready_pods())
    began = time.monotonic()
    service.write_scale(2)
    service.wait_replicas(2, 180)
    seconds = time.monotonic() - began
    service.patch({"autoscaling": None})
    service.eventually(lambda: _works_as(service, "Fixed"), "works without autoscaling")
    return f"{before} > 2 replicas ready {seconds:.0f} s after a write to /scale"


def switch_modes(service: InferenceService) -> list[str]:
    """Fixed → Builtin → External → Builtin → Fixed; return what was done to the pods meanwhile."""
    pods, changes = names_of(service.pods()), service.pod_changes()
    count = len(pods)
    steps: list[tuple[str, Object]] = [
        ("Builtin", {"autoscaling": AUTOSCALED}),
        ("External", {"autoscaling": {"mode": "External"}}),
        ("Builtin", {"autoscaling": {"mode": "Builtin"}}),
        ("Fixed", {"autoscaling": None}),
    ]
    for mode, edit in steps:
        service.patch(edit)
        service.eventually(lambda mode=mode: _works_as(service, mode), f"works in mode {mode}")
        assert service.deployment()["spec"]["replicas"] == count
    new = [each for each in service.pod_changes() if each not in changes]
    return new + sorted(pods ^ names_of(service.pods()))


def _works_as(service: InferenceService, mode: str) -> bool:
    """Whether the present edit was taken up; Builtin: a decision made after the switch."""
    document = service.document()
    if (document.get("status") or {}).get("observedGeneration") != document["metadata"]["generation"]:
        return False
    reason = service.condition("ScalingActive").get("reason")
    return bool(reason == mode or (mode == "Fixed" and reason is None))


def ten_edits(service: InferenceService) -> Object:
    """Edit ten times in a row without waiting; return the resource once it has settled."""
    for number in range(10):
        service.patch({"podTemplate": {"annotations": {"edit": str(number)}}, "replicas": 1 + number % 2})

    def settled() -> Object | None:
        document = service.document()
        status = document["status"]
        conditions = {c["type"]: c for c in status["conditions"]}
        rolled = conditions["Progressing"]["reason"] == "Complete" and conditions["Ready"]["status"] == "True"
        same = status["observedGeneration"] == document["metadata"]["generation"]
        return document if rolled and same else None

    return service.eventually(settled, "ten edits have settled", 180)


def idle_writes(fleet: Fleet, seconds: float) -> IdleMinute:
    """Wait until the operator is quiet, then return what it writes in `seconds`."""
    log = fleet.cluster.audit_log

    def quiet() -> int | None:
        since = audit.position(log)
        calm = time.monotonic() + 12  # more than a period of the autoscaler
        while time.monotonic() < calm:
            if _but_leases(audit.writes(log, since, fleet.operator_user)):
                return None
            time.sleep(0.5)
        return since

    wait_until(quiet, 180, "the operator has become quiet", blame=lambda: "\n".join(_latest(fleet)))
    since = audit.position(log)
    time.sleep(seconds)  # the minute itself
    found = audit.writes(log, since, fleet.operator_user)
    other = _but_leases(found)
    return IdleMinute(len(found) - len(other), other)


def _latest(fleet: Fleet) -> list[str]:
    return _but_leases(audit.writes(fleet.cluster.audit_log, 0, fleet.operator_user))[-10:]


def _but_leases(written: list[str]) -> list[str]:
    return [each for each in written if each.split()[1] != "leases"]


def decision(service: InferenceService, direction: str) -> dict[str, Any] | None:
    """Return the latest decision of that direction from the status."""
    history = (service.status().get("scaling") or {}).get("history") or []
    return next((each for each in reversed(history) if each["direction"] == direction), None)


def cordoned(pods: list[Object]) -> set[str]:
    marked = [pod for pod in pods if contract.ANNOTATION_CORDONED in (pod["metadata"].get("annotations") or {})]
    return names_of(marked)


def lost(streams: list[Stream]) -> list[str]:
    """Return what went wrong with each stream that did not end whole."""
    return [f"{s.status} {s.error or s.finish_reason} after {len(s.text)} characters" for s in broken(streams)]
