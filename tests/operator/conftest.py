"""The control plane of the operator's tests, and what they share."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo_operator.api.crd import manifest
from octavo_operator.names import derived

from . import rbac
from .control_plane import OPERATOR_USER, Api, ControlPlane, control_plane, eventually
from .operator_process import Operator


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane with our CRD, the operator's rights, and nothing else."""
    with control_plane(tmp_path_factory.mktemp("control-plane")) as running:
        api = running.admin
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", manifest())
        api.create("/api/v1/namespaces", {"metadata": {"name": "octavo-system"}})
        for path, document in rbac.manifests(OPERATOR_USER, "octavo-system"):
            api.create(path, document)
        served = "/apis/serving.octavo.dev/v1alpha1/inferenceservices"
        eventually(lambda: api.call("GET", served).status_code == 200, "the CRD is served")
        yield running


@pytest.fixture(scope="session")
def api(plane: ControlPlane) -> Api:
    return plane.admin


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """A fresh namespace with its default service account."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    api.delete(f"/api/v1/namespaces/{name}")
    # Everything else in a namespace waits for its pods, and pods for a kubelet: there is none.
    api.delete(f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")


@pytest.fixture(scope="module")
def operator(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A leading operator process for the whole module."""
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    with Operator(plane.kubeconfig("operator"), log) as process:
        yield process.leading()


@pytest.fixture
def operator_log(tmp_path: Path) -> Path:
    return tmp_path / "operator.log"


@pytest.fixture
def services(api: Api, namespace: str) -> "Services":
    return Services(api, namespace)


class Services:
    """InferenceServices of one namespace, and their children."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.root = f"/apis/serving.octavo.dev/v1alpha1/namespaces/{namespace}/inferenceservices"

    def try_create(self, spec: dict[str, Any], name: str = "demo", *, dry_run: bool = False) -> tuple[int, str]:
        body = {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name},
            "spec": spec,
        }
        dry = "&dryRun=All" if dry_run else ""
        response = self.api.call("POST", f"{self.root}?fieldValidation=Strict{dry}", body)
        return response.status_code, response.json().get("message", "")

    def create(self, spec: dict[str, Any], name: str = "demo") -> None:
        status, message = self.try_create(spec, name)
        assert status == 201, message

    def get(self, name: str = "demo") -> dict[str, Any]:
        found = self.api.get(f"{self.root}/{name}")
        assert found is not None
        return found

    def edit(self, spec: dict[str, Any], name: str = "demo") -> tuple[int, str]:
        """Merge into the spec; return the status and the message."""
        response = self.api.call("PATCH", f"{self.root}/{name}", {"spec": spec}, "application/merge-patch+json")
        return response.status_code, response.json().get("message", "")

    def condition(self, kind: str, name: str = "demo") -> dict[str, Any]:
        found = (self.get(name).get("status") or {}).get("conditions") or []
        return next((each for each in found if each["type"] == kind), {})

    def children(self) -> list[tuple[str, str]]:
        """(kind, name) of everything in the namespace that carries our label."""
        label = "?labelSelector=serving.octavo.dev/service"
        kinds = {
            "Deployment": f"/apis/apps/v1/namespaces/{self.namespace}/deployments",
            "PodDisruptionBudget": f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets",
            **{
                kind: f"/api/v1/namespaces/{self.namespace}/{kind.lower()}s"
                for kind in ("Service", "ServiceAccount", "ConfigMap", "Pod")
            },
        }
        found = {kind: self.api.items(path + label) for kind, path in kinds.items()}
        return [(kind, each["metadata"]["name"]) for kind, items in found.items() for each in items]

    def deployment(self, name: str = "demo") -> dict[str, Any]:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{derived(name)}"
        return eventually(lambda: self.api.get(path), f"the Deployment of {name}")

    def pods(self) -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=serving.octavo.dev/service"
        return [each for each in self.api.items(path) if not each["metadata"].get("deletionTimestamp")]

    def settled(self, name: str = "demo") -> bool:
        resource = self.get(name)
        return (resource.get("status") or {}).get("observedGeneration") == resource["metadata"]["generation"]

    def bury(self) -> None:
        """Finish the deletion of pods, as the kubelet would after their containers ended."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        for pod in self.api.items(path):
            if pod["metadata"].get("deletionTimestamp"):
                self.api.call("DELETE", f"{path}/{pod['metadata']['name']}?gracePeriodSeconds=0")

    def write_status(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        """Say about a pod what the kubelet would."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
        self.api.merge(path, {"status": status})

    def make_ready(self, count: int) -> list[dict[str, Any]]:
        """Wait for `count` assigned pods and make them Ready at an address where nobody answers."""

        def assigned() -> list[dict[str, Any]]:
            found = [pod for pod in self.pods() if pod["spec"].get("nodeName")]
            return found if len(found) >= count else []

        pods = eventually(assigned, f"{count} assigned pods")
        for pod in pods:
            container = {
                "name": "engine",
                "image": "i",
                "imageID": "",
                "restartCount": 0,
                "ready": True,
                "started": True,
            }
            self.write_status(
                pod,
                {
                    "phase": "Running",
                    "podIP": "127.0.0.1",
                    "conditions": [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")],
                    "containerStatuses": [{**container, "ready": True, "started": True, "state": {"running": {}}}],
                },
            )
        return pods
