"""What the conditions say, from numbers and diagnoses. No cluster."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from octavo_operator.autoscale.types import Limit
from octavo_operator.reconcile.conditions import ScalingView, Trouble, View, Workload, findings, merge
from octavo_operator.reconcile.diagnose import Diagnosis, diagnose

SERVING = View(False, "Fixed", Workload(wanted=2, total=2, updated=2, ready=2))
LOADING = replace(SERVING, workload=Workload(2, 2, 2, 0), pods_starting=True)
CRASH = Diagnosis("EngineCrashing", "weights are damaged", engine=True)
IMAGE = Diagnosis("ImagePullFailed", "unknown image")


def said(view: View, kind: str) -> tuple[str, str] | None:
    return next(((each.status, each.reason) for each in findings(view) if each.type == kind), None)


@pytest.mark.parametrize(
    ("view", "ready", "progressing", "loaded"),
    [
        (SERVING, ("True", "Serving"), ("True", "Complete"), ("True", "Loaded")),
        (LOADING, ("False", "Starting"), ("True", "Scaling"), ("False", "Loading")),
        (
            replace(LOADING, diagnosis=CRASH),
            ("False", "EngineCrashing"), ("True", "Scaling"), ("False", "EngineCrashing"),
        ),
        (
            replace(LOADING, diagnosis=IMAGE, pods_starting=False),
            ("False", "ImagePullFailed"), ("True", "Scaling"), ("Unknown", "NoPods"),
        ),
        (
            replace(SERVING, workload=Workload(2, 3, 1, 2)),
            ("False", "RollingOut"), ("True", "RollingOut"), ("True", "Loaded"),
        ),
        (
            replace(SERVING, workload=Workload(2, 3, 1, 2, stuck=True), diagnosis=Diagnosis("InsufficientGPU", "0/1")),
            ("False", "RollingOut"), ("False", "InsufficientGPU"), ("True", "Loaded"),
        ),
        (
            replace(SERVING, workload=Workload(3, 2, 2, 2)),
            ("True", "Serving"), ("True", "Scaling"), ("True", "Loaded"),
        ),
        (
            replace(SERVING, workload=Workload(2, 2, 0, 2, settled=False)),
            ("False", "RollingOut"), ("True", "RollingOut"), ("True", "Loaded"),
        ),
        (
            replace(SERVING, workload=Workload(0)),
            ("True", "ScaledToZero"), ("True", "Complete"), ("Unknown", "NoPods"),
        ),
        (
            replace(SERVING, suspended=True, workload=Workload(0)),
            ("False", "Suspended"), ("True", "Complete"), ("Unknown", "NoPods"),
        ),
        (
            replace(SERVING, trouble=Trouble("ResourceConflict", "Service demo exists")),
            ("False", "ResourceConflict"), ("False", "ResourceConflict"), ("True", "Loaded"),
        ),
        (
            replace(SERVING, waits_for="a/b"),
            ("True", "Serving"), ("True", "WaitingForRollout"), ("True", "Loaded"),
        ),
    ],
)  # fmt: skip
def test_table(view: View, ready: tuple[str, str], progressing: tuple[str, str], loaded: tuple[str, str]) -> None:
    assert said(view, "Ready") == ready
    assert said(view, "Progressing") == progressing
    assert said(view, "ModelLoaded") == loaded


@pytest.mark.parametrize(
    ("mode", "scaling", "active", "metrics", "limited"),
    [
        ("Fixed", None, None, None, None),
        ("External", None, ("True", "External"), None, None),
        ("Builtin", None, ("Unknown", "Starting"), None, None),
        (
            "Builtin", ScalingView(True, "2 of 2", "None"),
            ("True", "Builtin"), ("True", "Reporting"), ("False", "NotLimited"),
        ),
        (
            "Builtin", ScalingView(True, "2 of 2", "Max"),
            ("True", "Builtin"), ("True", "Reporting"), ("True", "Max"),
        ),
        (
            "Builtin", ScalingView(False, "0 of 2", "PartialData"),
            ("False", "MissingMetrics"), ("False", "MissingMetrics"), ("True", "PartialData"),
        ),
        (
            "Builtin", ScalingView(None, "0 of 0", "None"),
            ("True", "Builtin"), ("Unknown", "NoReadyPods"), ("False", "NotLimited"),
        ),
        (
            "Builtin", ScalingView(True, "2 of 2", "DryRun", dry_run=True),
            ("False", "DryRun"), ("True", "Reporting"), ("False", "NotLimited"),
        ),
    ],
)  # fmt: skip
def test_scaling_conditions(mode: Any, scaling: ScalingView | None, active: Any, metrics: Any, limited: Any) -> None:
    view = replace(SERVING, mode=mode, scaling=scaling)
    assert said(view, "ScalingActive") == active
    assert said(view, "MetricsAvailable") == metrics
    assert said(view, "ScalingLimited") == limited


def test_every_limit_has_its_sentence_without_numbers() -> None:
    for limit in set(get_args(Limit)) - {"None", "DryRun"}:
        view = replace(SERVING, mode="Builtin", scaling=ScalingView(True, "1 of 1", limit))
        [message] = [each.message for each in findings(view) if each.type == "ScalingLimited"]
        assert message
        assert not any(letter.isdigit() for letter in message)


@pytest.mark.parametrize(
    ("workload", "ready", "progressing"),
    [
        (Workload(2, 2, 2, 1), "1 of 2 replicas ready", "2 of 2 replicas updated; 1 of 2 replicas ready"),
        (Workload(1, 2, 2, 2), "2 replicas ready, 1 wanted", "2 replicas running, 1 wanted"),
        (
            Workload(2, 3, 1, 3),
            "1 of 2 replicas updated; 3 serve meanwhile", "1 of 2 replicas updated; 3 replicas ready, 2 wanted",
        ),
    ],
    ids=["growing", "shrinking", "rolling with a surge pod"],
)  # fmt: skip
def test_counts_make_sense_in_words(workload: Workload, ready: str, progressing: str) -> None:
    messages = {each.type: each.message for each in findings(replace(SERVING, workload=workload))}
    assert messages["Ready"] == ready
    assert messages["Progressing"] == progressing


def test_a_conditions_time_changes_only_when_its_status_does() -> None:
    first = merge(findings(LOADING), [], 1, "t1")
    second = merge(findings(replace(LOADING, diagnosis=CRASH)), first, 2, "t2")
    assert {each["lastTransitionTime"] for each in second} == {"t1"}
    assert {each["observedGeneration"] for each in second} == {2}
    third = merge(findings(SERVING), second, 2, "t3")
    assert {each["type"]: each["lastTransitionTime"] for each in third}["Ready"] == "t3"
    assert {each["type"]: each["lastTransitionTime"] for each in third}["Progressing"] == "t1"
    assert merge(findings(SERVING), third, 2, "t4") == third


def container(name: str = "engine", **state: Any) -> dict[str, Any]:
    return {"name": name, "image": "i", "ready": False, **state}


def pod(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"metadata": more.pop("metadata", {}), "status": {"containerStatuses": list(containers), **more}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod(container(state={"waiting": {"reason": reason, "message": message}}))


UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


@pytest.mark.parametrize(
    ("pods", "reason", "words"),
    [
        ([], None, ""),
        ([pod(container(state={"running": {}}))], None, ""),
        ([waiting("ContainerCreating")], None, ""),
        ([pod(conditions=[{**UNSCHEDULED, "message": "0/1 nodes: Insufficient cpu."}])], "Unschedulable", "cpu"),
        ([pod(conditions=[{**UNSCHEDULED, "message": "0/1: Insufficient amd.com/gpu."}])], "InsufficientGPU", "amd"),
        ([waiting("ErrImagePull", "denied")], "ImagePullFailed", "denied"),
        ([waiting("CreateContainerConfigError", 'no secret "k"')], "ContainerConfigInvalid", 'no secret "k"'),
        (
            [pod(container(state={"terminated": {"exitCode": 1, "message": "a\nb\n\n"}}))],
            "EngineFailed", "b",
        ),
        (
            [pod(container(state={"running": {}}, lastState={"terminated": {"exitCode": 1, "message": "bad flag"}}))],
            "EngineFailed", "bad flag",
        ),
        (
            [pod(container(ready=True, lastState={"terminated": {"exitCode": 1, "message": "old"}}))],
            None, "",
        ),
        (
            [pod(container(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}))],
            "OutOfMemory", "raise resources.limits.memory",
        ),
        (
            [pod(container("proxy", state={"terminated": {"exitCode": 2}}))],
            "SidecarFailed", "container proxy: exit code 2",
        ),
        (
            [pod(container(state={"terminated": {"exitCode": 1}}), metadata={"deletionTimestamp": "now"})],
            None, "",
        ),
        (
            [
                pod(conditions=[{**UNSCHEDULED, "message": "full"}]),
                pod(container(state={"terminated": {"exitCode": 1, "message": "damaged"}})),
            ],
            "EngineFailed", "damaged",
        ),
    ],
)  # fmt: skip
def test_why_a_pod_does_not_run(pods: list[dict[str, Any]], reason: str | None, words: str) -> None:
    found = diagnose(pods, None)
    assert (found.reason if found else None) == reason
    assert words in (found.message if found else "")


def test_pods_that_are_refused_by_the_api_server() -> None:
    condition = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods"}
    found = diagnose([], {"status": {"conditions": [condition]}})
    assert found == Diagnosis("PodsRefused", "exceeded quota: pods")
