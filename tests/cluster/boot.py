"""The order in which a cluster comes up, and the waits between. Runs on the host, in the process of `up`."""

import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import control
from .api import Api, ApiError, condition
from .build import Built
from .errors import ClusterError, tail
from .importing import import_archive
from .layout import Layout, Node
from .progress import Steps
from .waiting import wait_until

NODE_PROGRAMS = ("kubelet", "kube-proxy", "gpu-plugin")
CRASHES = 3
GPU = "nvidia.com/gpu"
SYSTEM_MANIFEST = Path(__file__).with_name("manifests") / "system.yaml"


class CrashLoop(ClusterError):
    """A program that dies each time it starts: waiting longer is useless."""


class Boot:
    def __init__(self, layout: Layout, built: Built, facts: dict[str, Any]) -> None:
        self.layout, self.built = layout, built
        self.api = Api(layout, facts["api_port"])
        self.gpus: int = facts["gpus"]
        self.cancelled = threading.Event()

    def everything(self, steps: Steps) -> None:
        pool = ThreadPoolExecutor(len(self.layout.nodes))
        try:
            with steps.step("control plane"):
                self.supervisor(self.layout)
                control.start(self.layout, "etcd", "kube-apiserver", "relay", *(n.name for n in self.layout.nodes))
                nodes = [pool.submit(self.containers, node) for node in self.layout.nodes]
                self.control_plane()
            with steps.step("nodes"):
                for prepared, node in zip(nodes, self.layout.nodes, strict=True):
                    prepared.result()
                    control.start(node, *NODE_PROGRAMS)
                for node in self.layout.nodes:
                    self.node_ready(node)
            with steps.step("cluster DNS"):
                self.name_service()
        finally:
            self.cancelled.set()
            pool.shutdown(cancel_futures=True)

    def control_plane(self) -> None:
        self.wait(self.layout, "kube-apiserver", "API server ready", lambda: self.api.get("/readyz"), 120)
        # These two exit if they come before the API server is ready.
        control.start(self.layout, "kube-controller-manager", "kube-scheduler")
        for manifest in (self.layout.run / "nodes.yaml", SYSTEM_MANIFEST):
            apply(self.layout, self.built, manifest)
        control.start(self.layout, "kube-proxy")

    def name_service(self) -> None:
        def ready() -> bool:
            deployment = self.api.json("/apis/apps/v1/namespaces/kube-system/deployments/coredns")
            return bool(deployment["status"].get("readyReplicas") == deployment["spec"]["replicas"])

        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self.wait(self.layout.nodes[0], "kubelet", "CoreDNS ready", ready, 90)
        self.wait(self.layout, "kube-controller-manager", "default service account", lambda: self.api.get(account), 60)

    def supervisor(self, where: Layout | Node) -> None:
        name = "supervisor" if isinstance(where, Layout) else where.name
        log = self.layout.logs / f"{name}.log"
        wait_until(
            lambda: control.ask(where.control_socket, "status"), 30, f"{name} answers",
            ignore=(OSError,), blame=lambda: tail(log), interval=0.02, cancelled=self.cancelled,
        )  # fmt: skip

    def containers(self, node: Node) -> None:
        """containerd up, with the images that a node starts with."""

        def answers() -> bool:
            command = [str(self.built.binaries / "ctr"), "-a", str(node.containerd_socket), "version"]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        self.supervisor(node)
        control.start(node, "containerd")
        self.wait(node, "containerd", f"containerd on {node.name} answers", answers, 60)
        for archive in self.built.images:
            import_archive(self.built, node, archive)

    def last_sign_of_life(self, node: Node) -> str:
        """When the node's kubelet last renewed its lease, as the API server writes it; empty if it never did."""
        leases = self.api.json("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")["items"]
        return "".join(lease["spec"]["renewTime"] for lease in leases if lease["metadata"]["name"] == node.name)

    def node_ready(self, node: Node, silent_since: str = "") -> None:
        """Wait until the node is Ready; with `silent_since`, not by what it said before it died."""

        def ready() -> bool:
            alive = self.last_sign_of_life(node) != silent_since
            found = self.api.json(f"/api/v1/nodes/{node.name}")
            return alive and condition(found, "Ready") and self.gpus <= int(found["status"]["allocatable"].get(GPU, 0))

        self.wait(node, "kubelet", f"{node.name} Ready", ready, 90)
        control.start(node, "kube-router")  # it exits if it comes before the node has an address

    def wait(self, where: Layout | Node, suspect: str, what: str, check: Callable[[], object], seconds: float) -> None:
        logs = self.layout.logs if isinstance(where, Layout) else self.layout.logs / where.name

        def check_unless_dying() -> object:
            for name, report in control.ask(where.control_socket, "status").items():
                if report["restarts"] >= CRASHES:
                    raise CrashLoop(f"{what}: {name} dies each time it starts; {tail(logs / f'{name}.log')}")
            return check()

        wait_until(
            check_unless_dying, seconds, what, ignore=(OSError, ApiError),
            blame=lambda: tail(logs / f"{suspect}.log"), cancelled=self.cancelled,
        )  # fmt: skip


def apply(layout: Layout, built: Built, manifest: Path) -> None:
    kubectl = [str(built.binaries / "kubectl"), f"--kubeconfig={layout.kubeconfig}"]
    command = [*kubectl, "apply", "--server-side", "-f", str(manifest)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise ClusterError(f"kubectl apply -f {manifest} failed: {finished.stderr.strip()}")
