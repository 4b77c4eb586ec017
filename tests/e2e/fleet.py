"""The product in the cluster under test, and one InferenceService as its user sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from examples.demo import stage
from images import build as images
from images import layers

from octavo_engine import contract
from octavo_operator import names
from tests.cluster.cluster import LocalCluster
from tests.cluster.errors import ClusterError
from tests.cluster.waiting import wait_until

Found = TypeVar("Found")
Object = dict[str, Any]

SCRIPTED = "scripted://?prefill=8000&step=20ms&blocks=512&eos=0"
"""512 blocks of 16 tokens; every answer ends at its max_tokens, one letter a token."""
RESOURCES = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
API_VERSION = f"{contract.API_GROUP}/{contract.API_VERSION}"
CHILDREN = "deployments,replicasets,pods,services,endpointslices,poddisruptionbudgets,serviceaccounts,configmaps"


@dataclass(frozen=True)
class Fleet:
    """A cluster with the operator installed."""

    cluster: LocalCluster

    @property
    def operator(self) -> str:
        """The operator's Deployment, as kubectl takes it."""
        return f"deployment/{stage.RELEASE}"

    @property
    def operator_user(self) -> str:
        """Its ServiceAccount, as the audit log names it."""
        return f"system:serviceaccount:{stage.SYSTEM_NAMESPACE}:{stage.RELEASE}"

    def scale_operator(self, replicas: int) -> None:
        """Take the operator away or bring it back; returns when that is done."""
        options = ("-n", stage.SYSTEM_NAMESPACE)
        self.cluster.kubectl("scale", self.operator, f"--replicas={replicas}", *options)
        if replicas:
            self.cluster.kubectl("rollout", "status", self.operator, *options, "--timeout=120s", timeout=150)
        else:
            pods = ("pods", *options, "-l", "app.kubernetes.io/name=octavo")
            wait_until(lambda: not self.cluster.get(*pods)["items"], 60, "the operator's pods are gone", interval=0.5)

    def kill_operator(self) -> None:
        """Kill it without a word of warning; returns when another one is ready."""
        options = ("-n", stage.SYSTEM_NAMESPACE)
        pods = ("-l", "app.kubernetes.io/name=octavo", *options)
        self.cluster.kubectl("delete", "pod", *pods, "--grace-period=0", "--force", timeout=60)
        self.cluster.kubectl("rollout", "status", self.operator, *options, "--timeout=120s", timeout=150)

    @contextmanager
    def volume(self, namespace: str, claim: str, folder: Path) -> Iterator[None]:
        """A folder of this machine as a claim; its PersistentVolume goes with it."""
        self.cluster.static_volume(claim, namespace, folder)
        yield
        self.cluster.kubectl("delete", "pv", f"{namespace}-{claim}", "--wait=false")

    def service(self, namespace: str, name: str = "assistant") -> InferenceService:
        """Return a handle; nothing is created."""
        return InferenceService(self.cluster, namespace, name)


def install(cluster: LocalCluster) -> Fleet:
    """Build and import this checkout's images unless they are there, and install the chart as the demo does."""
    archives = images.build(list(images.IMAGES), layers.cache_folder() / "images", say=lambda _: None)
    cluster.import_images(*archives)
    stage.install_operator(cluster)
    return Fleet(cluster)


def scripted(replicas: int | None = 1, uri: str = SCRIPTED, **more: Any) -> Object:
    """Return a spec with the scripted model; `more` are fields of the spec beside it."""
    spec: Object = {"model": {"uri": uri}, "resources": RESOURCES, "rollout": {"drainTimeoutSeconds": 120}, **more}
    if replicas is not None:
        spec["replicas"] = replicas
    return spec


@dataclass(frozen=True)
class InferenceService:
    """One resource, by kubectl."""

    cluster: LocalCluster
    namespace: str
    name: str

    @property
    def url(self) -> str:
        """The OpenAI API behind its Service, for clients of the cluster's proxy."""
        return f"http://{names.service(self.name)}.{self.namespace}.svc.cluster.local:{contract.PORT_HTTP}"

    def manifest(self, spec: Object) -> Object:
        metadata = {"name": self.name, "namespace": self.namespace}
        return {"apiVersion": API_VERSION, "kind": contract.KIND, "metadata": metadata, "spec": spec}

    def apply(self, spec: Object) -> None:
        self.cluster.apply(self.manifest(spec))

    def patch(self, spec: Object) -> None:
        """Merge into the spec; a refused edit raises ClusterError."""
        self.kubectl("patch", f"ois/{self.name}", "--type=merge", "-p", json.dumps({"spec": spec}))

    def write_scale(self, count: int) -> Object:
        """Write as a HorizontalPodAutoscaler does: read the Scale object, put it back. Return what was read.

        The object carries its version, and the operator writes status in between: a conflict means to read again.
        """
        path = f"/apis/{API_VERSION}/namespaces/{self.namespace}/{contract.PLURAL}/{self.name}/scale"

        def written() -> Object:
            scale: Object = json.loads(self.cluster.kubectl("get", "--raw", path))
            text = json.dumps({**scale, "spec": {"replicas": count}})
            try:
                self.cluster.kubectl("replace", "--raw", path, "-f", "-", input=text)
            except ClusterError as error:
                if "(Conflict)" not in str(error):
                    raise
                return {}
            return scale

        return wait_until(written, 30, f"/scale of {self.name} written")

    def delete(self, *, wait: bool = True) -> None:
        self.kubectl("delete", f"ois/{self.name}", f"--wait={str(wait).lower()}", timeout=180)

    def gone(self) -> bool:
        return not self.kubectl("get", f"ois/{self.name}", "--ignore-not-found", "-o", "name")

    def document(self) -> Object:
        return self.cluster.get("ois", self.name, "-n", self.namespace)

    def status(self) -> Object:
        return self.document().get("status") or {}

    def condition(self, kind: str) -> Object:
        """Return a condition of the present generation, else an empty object."""
        document = self.document()
        found = (document.get("status") or {}).get("conditions") or []
        generation = document["metadata"]["generation"]
        return next((c for c in found if c["type"] == kind and c["observedGeneration"] == generation), {})

    def pods(self) -> list[Object]:
        """Return its engine pods, those being deleted too."""
        label = f"{contract.LABEL_SERVICE}={names.derived(self.name)}"
        items: list[Object] = self.cluster.get("pods", "-n", self.namespace, "-l", label)["items"]
        return items

    def ready_pods(self) -> list[Object]:
        return [pod for pod in self.pods() if is_ready(pod) and not pod["metadata"].get("deletionTimestamp")]

    def deployment(self) -> Object:
        return self.cluster.get("deployment", names.derived(self.name), "-n", self.namespace)

    def children(self) -> list[str]:
        """Return kind/name of everything in the namespace that carries its label."""
        label = f"{contract.LABEL_SERVICE}={names.derived(self.name)}"
        items = self.cluster.get(CHILDREN, "-n", self.namespace, "-l", label)["items"]
        return [f"{item['kind']}/{item['metadata']['name']}" for item in items]

    def pod_changes(self) -> list[str]:
        """Return what the ReplicaSets created and deleted so far, as their events tell."""
        events = self.cluster.get("events", "-n", self.namespace)["items"]
        changes = ("SuccessfulCreate", "SuccessfulDelete")
        return sorted(event["message"] for event in events if event["reason"] in changes)

    def wait_ready(self, seconds: float = 120) -> None:
        stage.wait_ready(self.cluster, self.namespace, self.name, seconds=seconds)

    def wait_replicas(self, count: int, seconds: float = 90) -> None:
        """Wait until exactly `count` pods exist, all of them ready."""
        self.eventually(
            lambda: len(self.pods()) == count == len(self.ready_pods()), f"{count} replicas, all ready", seconds
        )

    def eventually(self, check: Callable[[], Found], what: str, seconds: float = 60) -> Found:
        """Return the first true value of `check`; a wait that runs out shows the resource and its pods."""
        return wait_until(check, seconds, f"{self.namespace}/{self.name}: {what}", blame=self._story, interval=0.5)

    def _story(self) -> str:
        parts = (
            self.kubectl("get", "ois", self.name, "-o", "yaml", check=False),
            self.kubectl("get", "pods", "-o", "wide", check=False),
            self.kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)[-3000:],
            self.cluster.kubectl(
                "logs", f"deployment/{stage.RELEASE}", "-n", stage.SYSTEM_NAMESPACE, "--tail=20", check=False
            ),
        )
        return "\n".join(parts)

    def kubectl(self, *arguments: str, check: bool = True, timeout: float = 120) -> str:
        return self.cluster.kubectl(*arguments, "-n", self.namespace, check=check, timeout=timeout)


def is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def pod_url(pod: Object) -> str:
    """Return one pod's own address, for clients of the cluster's proxy."""
    return f"http://{pod['status']['podIP']}:{contract.PORT_HTTP}"


def names_of(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}
