"""One writer of replicas, in every mode, on a real control plane."""

from typing import Any

import pytest

from octavo_engine.contract import ANNOTATION_CORDONED, ANNOTATION_DELETION_COST
from octavo_operator.names import derived

from .conftest import Services
from .control_plane import eventually

pytestmark = pytest.mark.usefixtures("operator")

MODEL = {"model": {"uri": "scripted://"}}
BUILTIN = {"mode": "Builtin", "minReplicas": 1, "maxReplicas": 5}


def live(services: Services) -> int:
    return int(services.deployment()["spec"]["replicas"])


def pods(services: Services) -> set[str]:
    return {pod["metadata"]["uid"] for pod in services.pods()}


def switch(services: Services, spec: dict[str, Any]) -> None:
    """Edit, and wait until the operator has acted on it and is quiet."""
    assert services.edit(spec) == (200, "")
    eventually(services.settled, "the edit is settled")


def test_every_switch_of_modes_keeps_the_pods(services: Services) -> None:
    services.create({**MODEL, "replicas": 3})
    services.make_ready(3)
    eventually(lambda: services.condition("Ready").get("reason") == "Serving", "serving")
    before = pods(services)
    switch(services, {"autoscaling": BUILTIN})
    switch(services, {"autoscaling": {"mode": "External"}})
    assert services.get()["spec"]["replicas"] == 3
    switch(services, {"autoscaling": {"mode": "Builtin"}})
    switch(services, {"autoscaling": None})
    assert services.get()["spec"]["replicas"] == 3
    assert live(services) == 3
    assert pods(services) == before


def test_leaving_builtin_writes_the_live_count_over_the_leftover(services: Services) -> None:
    services.create({**MODEL, "replicas": 1})
    services.deployment()
    switch(services, {"autoscaling": {**BUILTIN, "minReplicas": 3}})
    eventually(lambda: live(services) == 3, "the bounds apply")
    switch(services, {"autoscaling": None})
    eventually(lambda: services.get()["spec"]["replicas"] == 3, "the live count is written through /scale")
    assert live(services) == 3
    assert services.edit({"replicas": 4}) == (200, "")
    eventually(lambda: live(services) == 4, "the user's number is used again")


def test_external_follows_the_scale_subresource(services: Services) -> None:
    services.create({**MODEL, "autoscaling": {"mode": "External"}})
    scale = f"{services.root}/demo/scale"
    eventually(lambda: services.get()["spec"].get("replicas") == 1, "the operator writes the live count once")
    eventually(services.settled, "settled")
    found = services.api.get(scale)
    assert found is not None
    assert found["status"]["selector"] == services.get()["status"]["selector"]
    services.api.merge(scale, {"spec": {"replicas": 4}})
    eventually(lambda: live(services) == 4, "the scaler's number arrives")


def test_scaling_the_deployment_by_hand_is_taken_back(services: Services) -> None:
    services.create({**MODEL, "replicas": 2})
    services.deployment()
    eventually(services.settled, "settled")
    path = f"/apis/apps/v1/namespaces/{services.namespace}/deployments/{derived('demo')}"
    services.api.merge(path, {"spec": {"replicas": 5}})
    eventually(lambda: live(services) == 2, "the operator's number again")


def test_a_lost_status_changes_no_replicas(services: Services) -> None:
    services.create({**MODEL, "autoscaling": {**BUILTIN, "minReplicas": 3}})
    eventually(lambda: live(services) == 3, "the minimum")
    services.api.merge(f"{services.root}/demo/status", {"status": None})
    eventually(services.settled, "status is written again")
    assert live(services) == 3


def test_a_serving_pod_is_cordoned_before_it_goes(services: Services) -> None:
    services.create({**MODEL, "replicas": 2, "rollout": {"drainTimeoutSeconds": 3}})
    services.make_ready(2)
    eventually(lambda: services.condition("Ready").get("reason") == "Serving", "serving")
    services.api.merge(f"{services.root}/demo/scale", {"spec": {"replicas": 1}})

    def marked() -> list[dict[str, Any]]:
        return [pod for pod in services.pods() if ANNOTATION_CORDONED in pod["metadata"].get("annotations", {})]

    [victim] = eventually(marked, "one pod is marked")
    assert victim["metadata"]["annotations"][ANNOTATION_DELETION_COST] == "-1000"
    assert live(services) == 2
    eventually(lambda: live(services) == 1, "the replica goes at the drain time-out")
    eventually(lambda: victim["metadata"]["uid"] not in pods(services), "the marked pod is the one that goes")
    assert len(pods(services)) == 1


def test_growing_again_takes_the_mark_back(services: Services) -> None:
    services.create({**MODEL, "replicas": 2, "rollout": {"drainTimeoutSeconds": 300}})
    services.make_ready(2)
    eventually(lambda: services.condition("Ready").get("reason") == "Serving", "serving")
    before = pods(services)
    scale = f"{services.root}/demo/scale"

    def marks() -> int:
        return sum(ANNOTATION_CORDONED in pod["metadata"].get("annotations", {}) for pod in services.pods())

    services.api.merge(scale, {"spec": {"replicas": 1}})
    eventually(lambda: marks() == 1, "one pod is marked")
    services.api.merge(scale, {"spec": {"replicas": 2}})
    eventually(lambda: marks() == 0, "no pod is marked")
    assert live(services) == 2
    assert pods(services) == before


def test_a_pod_that_no_node_takes_is_given_up_before_one_that_serves(services: Services) -> None:
    services.create({**MODEL, "replicas": 3, "resources": {"limits": {"nvidia.com/gpu": 1}}})
    serving = {pod["metadata"]["uid"] for pod in services.make_ready(2)}
    eventually(lambda: services.condition("Ready").get("reason") == "Serving", "two serve")
    eventually(lambda: "InsufficientGPU" in services.condition("Ready")["message"], "the third says why it waits")
    services.api.merge(f"{services.root}/demo/scale", {"spec": {"replicas": 2}})
    eventually(lambda: live(services) == 2, "the replica goes at once")
    eventually(lambda: pods(services) == serving, "the pods that serve stay")
    marks = [pod["metadata"].get("annotations", {}) for pod in services.pods()]
    assert not any(ANNOTATION_CORDONED in each for each in marks)
