"""Somebody else's cluster: reached by its own API server, images by a registry, nothing assumed about its nodes."""

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from .cluster import TEST_LABEL, Cluster
from .errors import ClusterError
from .layout import GROUP
from .lifecycle import free_port
from .registry import push


@dataclass
class ForeignCluster(Cluster):
    registry: str = ""
    _forwards: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False)

    def import_images(self, *archives: Path) -> None:
        if not self.registry:
            raise ClusterError("set OCTAVO_TEST_REGISTRY to a registry that the cluster's nodes pull from")
        for archive in archives:
            push(Path(archive), self.registry)

    def image(self, name: str) -> str:
        return f"{self.registry}/{name.split('/', 1)[-1]}"

    def relay(self, target: str, local_port: int = 0) -> str:
        """By `kubectl port-forward`, for as long as this process lives."""
        path, _, port = target.rpartition(":")
        match path.split("/"):
            case [namespace, service]:
                resource = f"service/{service}"
            case [namespace, "pod", name]:
                resource = f"pod/{name}"
            case _:
                raise ClusterError(f"cannot relay {target!r}: write NAMESPACE/SERVICE:PORT or NAMESPACE/pod/NAME:PORT")
        local = local_port or free_port()
        command = [self.kubectl_path, f"--kubeconfig={self.kubeconfig}", "-n", namespace, "port-forward", resource]
        forward = subprocess.Popen([*command, f"{local}:{port}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert forward.stdout
        if not (first := forward.stdout.readline()).startswith(b"Forwarding"):
            raise ClusterError(f"kubectl port-forward {resource} failed: {first.decode().strip()}")
        self._forwards.append(forward)
        return f"http://127.0.0.1:{local}"

    def close(self) -> None:
        for forward in self._forwards:
            with contextlib.suppress(ProcessLookupError):
                forward.kill()
            forward.communicate()


def foreign_cluster(kubeconfig: Path, registry: str) -> ForeignCluster:
    """The cluster of `kubeconfig`, refused if it serves InferenceServices that no test made."""
    if not kubeconfig.exists():
        raise ClusterError(f"OCTAVO_TEST_KUBECONFIG names {kubeconfig}, which does not exist")
    kubectl = shutil.which("kubectl", path=os.environ.get("PATH"))
    if not kubectl:
        raise ClusterError("kubectl is not on PATH: it is needed with OCTAVO_TEST_KUBECONFIG")
    cluster = ForeignCluster("", kubeconfig.resolve(), kubectl, registry=registry.rstrip("/"))
    cluster.name = cluster.kubectl("config", "current-context").strip()
    refuse_foreign_services(cluster)
    return cluster


def refuse_foreign_services(cluster: Cluster) -> None:
    known = cluster.kubectl("api-resources", f"--api-group={GROUP}", "-o", "name")
    if f"inferenceservices.{GROUP}" not in known:
        return
    ours = {n["metadata"]["name"] for n in cluster.get("namespaces", "-l", f"{TEST_LABEL}=true")["items"]}
    services = [item["metadata"] for item in cluster.get(f"inferenceservices.{GROUP}", "-A")["items"]]
    if strangers := [f"{s['namespace']}/{s['name']}" for s in services if s["namespace"] not in ours]:
        raise ClusterError(
            f"context {cluster.name!r} serves InferenceServices that no test made ({', '.join(strangers)}); "
            "tests would disturb them: point OCTAVO_TEST_KUBECONFIG at another cluster"
        )
