"""The real operator process on a real control plane: children come, converge, and go."""

from typing import Any

import httpx
import pytest

from octavo_operator.names import derived

from .conftest import Services
from .control_plane import eventually
from .operator_process import ENGINE_IMAGE, Operator

pytestmark = pytest.mark.usefixtures("operator")

FIXED: dict[str, Any] = {"model": {"uri": "scripted://"}, "replicas": 1}
RESTARTED = "kubectl.kubernetes.io/restartedAt"


def reason(services: Services, condition: str = "Ready") -> tuple[str | None, str | None]:
    found = services.condition(condition)
    return found.get("status"), found.get("reason")


def deployment_path(services: Services, name: str = "demo") -> str:
    return f"/apis/apps/v1/namespaces/{services.namespace}/deployments/{derived(name)}"


def test_makes_every_child_and_describes_it(services: Services) -> None:
    services.create(FIXED)
    deployment = services.deployment()
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == ENGINE_IMAGE
    eventually(services.settled, "status describes the generation")
    kinds = {kind for kind, _ in services.children()}
    assert kinds >= {"Deployment", "Service", "ServiceAccount", "ConfigMap", "PodDisruptionBudget"}
    assert reason(services) == ("False", "Starting")
    status = services.get()["status"]
    assert status["address"] == {"url": f"http://demo.{services.namespace}.svc:8000/v1"}
    assert "serving.octavo.dev/revision=" in status["selector"]


def test_ready_when_pods_are(services: Services) -> None:
    services.create(FIXED)
    services.make_ready(1)
    eventually(lambda: reason(services) == ("True", "Serving"), "ready")
    assert reason(services, "ModelLoaded") == ("True", "Loaded")
    assert reason(services, "Progressing") == ("True", "Complete")
    assert services.get()["status"]["readyReplicas"] == 1


def test_deleting_leaves_no_child(services: Services) -> None:
    services.create(FIXED)
    eventually(lambda: any(kind == "Pod" for kind, _ in services.children()), "a pod")
    services.api.delete(f"{services.root}/demo")
    eventually(lambda: services.api.get(f"{services.root}/demo") is None, "the resource is gone")

    def childless() -> bool:
        services.bury()
        return services.children() == []

    eventually(childless, "every child is gone")


@pytest.mark.parametrize("name", ["a.b", "0-starts-with-a-digit", "x" * 253, ".".join(["part" * 10] * 6)])
def test_every_legal_name_works(services: Services, name: str) -> None:
    services.create(FIXED, name)
    services.deployment(name)
    eventually(lambda: services.settled(name), "status describes the generation")
    assert services.condition("Ready", name)["reason"] == "Starting"


def test_ten_edits_in_a_row_converge(services: Services) -> None:
    services.create(FIXED)
    for number in range(10):
        assert services.edit({"engine": {"maxNumSeqs": number + 1}}) == (200, "")
    eventually(services.settled, "status describes the last generation")
    arguments = services.deployment()["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--max-num-seqs") + 1] == "10"


def test_a_foreign_service_of_the_same_name_is_left_alone_and_reported(services: Services) -> None:
    path = f"/api/v1/namespaces/{services.namespace}/services"
    foreign = services.api.create(path, {"metadata": {"name": "demo"}, "spec": {"ports": [{"port": 80}]}})
    services.create(FIXED)
    eventually(lambda: reason(services) == ("False", "ResourceConflict"), "the conflict is a condition")
    assert "Service demo exists and does not belong to this service" in services.condition("Ready")["message"]
    assert services.settled()
    assert not {"url", "address"} & services.get()["status"].keys()
    assert services.api.get(f"{path}/demo") == foreign
    services.api.delete(f"{path}/demo")
    eventually(lambda: reason(services) == ("False", "Starting"), "it heals when the other one is gone")
    assert services.get()["status"]["url"] == f"http://demo.{services.namespace}.svc:8000/v1"


def test_restarts_and_foreign_fields_survive_an_edit(services: Services) -> None:
    services.create(FIXED)
    services.deployment()
    foreign = {
        "metadata": {"annotations": {"team": "a"}},
        "spec": {"template": {"metadata": {"annotations": {RESTARTED: "2026-01-01T00:00:00Z"}}}},
    }
    services.api.merge(deployment_path(services), foreign)
    assert services.edit({"engine": {"maxNumSeqs": 7}}) == (200, "")

    def edited() -> bool:
        return "7" in services.deployment()["spec"]["template"]["spec"]["containers"][0]["args"]

    eventually(edited, "the edit arrives")
    deployment = services.deployment()
    assert deployment["metadata"]["annotations"]["team"] == "a"
    assert deployment["spec"]["template"]["metadata"]["annotations"] == {RESTARTED: "2026-01-01T00:00:00Z"}


def test_a_deleted_child_comes_back(services: Services) -> None:
    services.create(FIXED)
    path = f"/api/v1/namespaces/{services.namespace}/services/demo"
    before = eventually(lambda: services.api.get(path), "the Service")
    services.api.delete(path)
    after = eventually(lambda: services.api.get(path), "the Service again")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


def test_a_pod_template_that_is_refused_changes_nothing_and_says_why(services: Services) -> None:
    services.create(FIXED)
    before = services.deployment()
    eventually(services.settled, "settled")
    assert services.edit({"podTemplate": {"tolerations": [{"operator": "Sometimes"}]}}) == (200, "")
    eventually(lambda: reason(services) == ("False", "InvalidPodTemplate"), "the refusal is a condition")
    assert "Sometimes" in services.condition("Ready")["message"]
    assert services.settled()
    assert services.deployment()["spec"] == before["spec"]
    assert services.edit({"podTemplate": {"affinity": {"nodeAffinty": {}}, "tolerations": None}}) == (200, "")
    eventually(lambda: "nodeAffinty" in services.condition("Ready")["message"], "an unknown field is refused too")
    volumes = [{"name": "scratch", "emptyDir": {"sizeLimit": "banana"}}]
    assert services.edit({"podTemplate": {"affinity": None, "volumes": volumes}}) == (200, "")
    eventually(lambda: "quantities" in services.condition("Ready")["message"], "a malformed quantity is refused too")
    assert reason(services) == ("False", "InvalidPodTemplate")
    assert services.edit({"podTemplate": None}) == (200, "")
    eventually(lambda: reason(services) == ("False", "Starting"), "it heals")


def test_an_error_that_stays_is_a_condition(services: Services) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    webhook = {
        "name": "nobody.answers.test",
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": services.namespace}},
        "rules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["deployments"]}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    services.api.create(path, {"metadata": {"name": services.namespace}, "webhooks": [webhook]})
    try:
        services.create(FIXED)
        eventually(lambda: reason(services) == ("False", "ApplyFailed"), "the failure is a condition")
        assert "nobody.answers.test" in services.condition("Ready")["message"]
        assert services.settled()
    finally:
        services.api.delete(f"{path}/{services.namespace}")
    services.deployment()
    eventually(lambda: reason(services) == ("False", "Starting"), "it heals")


def test_unset_fields_leave_the_pods(services: Services) -> None:
    services.create({**FIXED, "podTemplate": {"env": [{"name": "A", "value": "1"}], "nodeSelector": {"disk": "ssd"}}})
    assert services.deployment()["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert services.edit({"podTemplate": None}) == (200, "")

    def unset() -> bool:
        pod = services.deployment()["spec"]["template"]["spec"]
        return "nodeSelector" not in pod and all(each["name"] != "A" for each in pod["containers"][0]["env"])

    eventually(unset, "the fields are gone")


def test_says_that_gpus_are_missing(services: Services) -> None:
    services.create({**FIXED, "resources": {"limits": {"nvidia.com/gpu": 4}}, "engine": {"tensorParallelSize": 4}})
    eventually(lambda: reason(services) == ("False", "InsufficientGPU"), "the reason is surfaced")
    assert "Insufficient nvidia.com/gpu" in services.condition("WorkloadAvailable")["message"]


@pytest.mark.parametrize(
    ("state", "expected", "words"),
    [
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
            "ImagePullFailed",
            "no such",
        ),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                "lastState": {"terminated": {"exitCode": 1, "message": "loading\nweights are damaged\n"}},
            },
            "EngineCrashing",
            "weights are damaged",
        ),
    ],
)
def test_says_why_a_pod_does_not_run(services: Services, state: dict[str, Any], expected: str, words: str) -> None:
    services.create(FIXED)
    [pod] = eventually(services.pods, "a pod")
    container = {"name": "engine", "image": "i", "imageID": "", "restartCount": 3, "ready": False}
    services.write_status(pod, {"phase": "Pending", "containerStatuses": [{**container, **state}]})
    eventually(lambda: reason(services) == ("False", expected), "the reason is surfaced")
    assert words in services.condition("Ready")["message"]


def test_suspending_keeps_the_number(services: Services) -> None:
    services.create({**FIXED, "replicas": 2})
    eventually(lambda: len(services.pods()) == 2, "two pods")
    assert services.edit({"suspend": True}) == (200, "")
    eventually(lambda: services.deployment()["spec"]["replicas"] == 0, "no replicas")
    eventually(lambda: reason(services) == ("False", "Suspended"), "suspended")
    assert services.get()["status"]["selector"]
    assert services.edit({"suspend": False}) == (200, "")
    eventually(lambda: services.deployment()["spec"]["replicas"] == 2, "two replicas again")


def test_zero_replicas_on_purpose_is_ready(services: Services) -> None:
    services.create({**FIXED, "replicas": 0})
    eventually(lambda: reason(services) == ("True", "ScaledToZero"), "ready at zero")


def test_health_and_metrics_answer(operator: Operator) -> None:
    assert httpx.get(f"{operator.health}/healthz", trust_env=False).text == "ok"
    assert httpx.get(f"{operator.health}/readyz", trust_env=False).status_code == 200
    assert "octavo_operator_reconcile_seconds_count" in operator.numbers()


def test_one_that_was_stored_before_todays_rules_harms_nobody(services: Services) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceservices.serving.octavo.dev"
    strict = services.api.get(path)
    assert strict is not None
    [version] = strict["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    loose = {**schema["properties"], "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    relaxed = {**version, "schema": {"openAPIV3Schema": {**schema, "properties": loose}}}
    services.api.merge(path, {"spec": {"versions": [relaxed]}})
    bad = {"model": {"uri": 7}, "replicas": 5000, "engine": {"args": "x"}}
    try:
        eventually(lambda: services.try_create(bad, "bad") == (201, ""), "the API server takes it")
    finally:
        services.api.merge(path, {"spec": {"versions": [version]}})
    eventually(lambda: services.condition("Ready", "bad").get("reason") == "InvalidSpec", "it is told why")
    assert "spec.replicas: " in services.condition("Ready", "bad")["message"]
    eventually(lambda: services.try_create({**FIXED, "replicas": -1}, "no")[0] == 422, "the rules are back")
    services.create(FIXED)
    eventually(lambda: reason(services) == ("False", "Starting"), "others are served")
