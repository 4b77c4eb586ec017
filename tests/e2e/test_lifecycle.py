"""From birth to deletion: edits converge, nothing stays behind, nothing of others is touched, idle means silent."""

from __future__ import annotations

import pytest

from . import scenarios
from .fleet import Fleet, InferenceService, scripted
from .load import Load, begin, broken, finish

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]  # the first test builds images and installs, too

IDLE_SECONDS = 35
"""Longer than every period of the operator's; the acceptance run takes the whole minute."""


def test_ten_edits_in_a_row_converge(service: InferenceService) -> None:
    service.apply(scripted(1))
    service.wait_ready()
    document = scenarios.ten_edits(service)
    assert document["status"]["observedGeneration"] == document["metadata"]["generation"]
    template = service.deployment()["spec"]["template"]
    assert template["metadata"]["annotations"]["edit"] == "9"
    assert service.deployment()["spec"]["replicas"] == 2


def test_deleting_it_leaves_no_child_and_cuts_no_stream(service: InferenceService, load: Load) -> None:
    service.apply(scripted(1))
    service.wait_ready()
    kinds = {child.split("/")[0] for child in service.children()}
    assert kinds >= {"Deployment", "ReplicaSet", "Pod", "Service", "PodDisruptionBudget", "ServiceAccount", "ConfigMap"}
    streams = load.stream(service.url, 4, max_tokens=300)
    begin(streams)
    service.delete()
    finish(streams)
    assert broken(streams) == []
    service.eventually(lambda: service.children() == [], "no child is left")


def test_deleting_it_while_the_operator_is_down_works_once_it_is_back(fleet: Fleet, service: InferenceService) -> None:
    service.apply(scripted(1))
    service.wait_ready()
    fleet.scale_operator(0)
    try:
        service.delete(wait=False)
        assert service.document()["metadata"]["deletionTimestamp"]
    finally:
        fleet.scale_operator(1)
    service.eventually(lambda: service.gone(), "the resource is gone")
    service.eventually(lambda: service.children() == [], "no child is left")


def test_a_service_of_the_same_name_is_not_touched_and_becomes_a_condition(service: InferenceService) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service.name, "namespace": service.namespace, "labels": {"whose": "somebody-else"}},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "theirs"}},
    }
    service.cluster.apply(foreign)
    before = service.cluster.get("service", service.name, "-n", service.namespace)
    service.apply(scripted(1))
    ready = service.eventually(
        lambda: (found := service.condition("Ready")).get("reason") == "ResourceConflict" and found,
        "the conflict is a condition",
    )
    assert f"Service {service.name}" in ready["message"]
    service.delete()
    service.eventually(lambda: service.children() == [], "no child is left")
    assert service.cluster.get("service", service.name, "-n", service.namespace) == before


def test_an_idle_operator_writes_nothing_but_its_lease(fleet: Fleet, service: InferenceService) -> None:
    service.apply(scripted(None, autoscaling={"minReplicas": 1, "maxReplicas": 2}))
    fleet.service(service.namespace, "fixed").apply(scripted(1))
    service.wait_ready()
    fleet.service(service.namespace, "fixed").wait_ready()
    found = scenarios.idle_writes(fleet, IDLE_SECONDS)
    assert found.lease > 0
    assert found.other == []
