"""A manifest as the API server sends it, and the spec: what the autoscaler sees in them."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_engine import contract
from octavo_operator.autoscale import PodState, Policy, format_time, observe_pod, parse_time, policy_from_spec


def manifest(phase: str = "Running", *, deleted: bool = False, **conditions: tuple[str, str]) -> dict[str, Any]:
    metadata: dict[str, Any] = {"uid": "u", "name": "p", "creationTimestamp": "2027-01-15T08:00:00Z"}
    if deleted:
        metadata["deletionTimestamp"] = "2027-01-15T09:00:00Z"
    listed = [
        {"type": name, "status": status, "reason": reason, "lastTransitionTime": "2027-01-15T08:01:00Z"}
        for name, (status, reason) in conditions.items()
    ]
    return {"metadata": metadata, "status": {"phase": phase, "podIP": "10.0.0.1", "conditions": listed}}


@pytest.mark.parametrize(
    ("given", "state"),
    [
        (manifest(Ready=("True", "")), PodState.READY),
        (manifest(Ready=("True", ""), deleted=True), PodState.TERMINATING),
        (manifest(Ready=("False", "ContainersNotReady"), PodScheduled=("True", "")), PodState.STARTING),
        (manifest("Pending"), PodState.STARTING),
        (manifest("Pending", PodScheduled=("False", "Unschedulable")), PodState.UNSCHEDULABLE),
        (manifest("Pending", PodScheduled=("False", "SchedulingGated")), PodState.UNSCHEDULABLE),
        (manifest("Failed", Ready=("False", "")), PodState.ENDED),
        (manifest("Succeeded", deleted=True), PodState.ENDED),
        ({"metadata": {"uid": "u", "name": "p"}}, PodState.STARTING),
    ],
)
def test_pods_are_told_apart(given: dict[str, Any], state: PodState) -> None:
    assert observe_pod(given).state is state


def test_times_tell_a_cold_start_from_a_lost_readiness() -> None:
    ready = observe_pod(manifest(Ready=("True", "")))
    assert ready.ready_at is not None
    assert (ready.ready_at - ready.created_at, ready.not_ready_since) == (60, None)
    lost = observe_pod(manifest(Ready=("False", "")))
    assert (lost.ready_at, lost.not_ready_since) == (None, ready.ready_at)


@pytest.mark.parametrize(("mark", "at"), [("2027-01-15T08:00:00Z", 1.8e9), ("true", None), ("", None)])
def test_a_mark_counts_even_if_its_time_is_not_legible(mark: str, at: float | None) -> None:
    given = manifest(Ready=("True", ""))
    given["metadata"]["annotations"] = {contract.ANNOTATION_CORDONED: mark}
    assert (observe_pod(given).cordoned, observe_pod(given).cordoned_at) == (True, at)


def test_times_are_written_as_kubernetes_writes_them() -> None:
    assert format_time(1.8e9 + 0.9) == "2027-01-15T08:00:00Z"
    assert parse_time(format_time(1.8e9)) == 1.8e9
    assert parse_time("2027-01-15T09:00:00.5+01:00") == 1.8e9 + 0.5
    assert parse_time(None) is None


def test_a_spec_gives_its_policy_and_defaults_fill_the_rest() -> None:
    spec = {
        "engine": {"kvCache": {"blockSize": 32}},
        "rollout": {"startupTimeoutSeconds": 600},
        "autoscaling": {
            "mode": "Builtin",
            "minReplicas": 0,
            "maxReplicas": 8,
            "targetKVUtilizationPercent": 70,
            "scaleUp": {"maxPods": 2},
            "scaleDown": {"stabilizationSeconds": 30},
        },
    }
    policy = policy_from_spec(spec)
    assert (policy.min_replicas, policy.max_replicas, policy.target_utilization_percent) == (0, 8, 70)
    assert (policy.scale_up.max_pods, policy.scale_up.max_percent) == (2, 100)
    assert (policy.scale_down.stabilization_seconds, policy.scale_down.period_seconds) == (30, 60)
    assert (policy.block_size, policy.startup_timeout_seconds, policy.dry_run) == (32, 600, False)
    assert policy_from_spec({}) == Policy()


@pytest.mark.parametrize(
    ("scaling", "remedy"),
    [
        ({"minReplicas": 3, "maxReplicas": 2}, "raise maxReplicas"),
        ({"targetKVUtilizationPercent": 60}, "must be below"),
    ],
)
def test_contradictions_are_refused_with_the_remedy(scaling: dict[str, int], remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        policy_from_spec({"autoscaling": scaling})
