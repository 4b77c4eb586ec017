"""Names, paths and addresses of one cluster. Everything else asks here, nothing else joins paths.

    host namespace                     cluster namespaces (pid, mount, net, uts, ipc, cgroup)
    127.0.0.1:PORT  <--- relay --->    control 192.0.2.1 --- br0 --- node1 192.0.2.11, pods 10.244.1.0/24
                                                              \\----- node2 192.0.2.12, pods 10.244.2.0/24

The addresses exist in network namespaces of the cluster's own, so clusters of different names never clash.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .errors import ClusterError

CONTROL_IP = "192.0.2.1"
API_URL = f"https://{CONTROL_IP}:6443"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
DNS_SERVICE_IP = "10.96.0.10"
POD_CIDR = "10.244.0.0/16"
DOMAIN = "cluster.local"
GROUP = "serving.octavo.dev"
REPOSITORY = Path(__file__).resolve().parents[2]


def clusters_dir() -> Path:
    """Where clusters keep their state. On disk, not in /run: image stores outgrow a tmpfs."""
    return Path(os.environ.get("OCTAVO_CLUSTER_DIR", "/var/tmp/octavo-cluster"))


@dataclass(frozen=True)
class Node:
    name: str
    index: int
    run: Path

    @property
    def ip(self) -> str:
        return f"192.0.2.{10 + self.index}"

    @property
    def pod_cidr(self) -> str:
        return f"10.244.{self.index}.0/24"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def control_socket(self) -> Path:
        return self.run / "supervisor.sock"

    @property
    def spec(self) -> Path:
        return self.run / "supervisor.json"


@dataclass(frozen=True)
class Layout:
    name: str
    node_count: int = 2

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", self.name):
            raise ClusterError(
                f"cluster name {self.name!r}: use 1 to 32 lower-case letters, digits and inner dashes, such as 'dev'"
            )

    @property
    def run(self) -> Path:
        return clusters_dir() / self.name

    @property
    def lock(self) -> Path:
        return clusters_dir() / f"{self.name}.lock"

    @property
    def cgroup(self) -> str:
        return f"octavo-{self.name}"

    @property
    def context(self) -> str:
        return f"octavo-{self.name}"

    @property
    def state(self) -> Path:
        return self.run / "state.json"

    @property
    def checkout(self) -> Path:
        """Holds the path of the checkout that started the cluster: `make clean` ends those of its own only."""
        return self.run / "checkout"

    @property
    def spec(self) -> Path:
        return self.run / "supervisor.json"

    @property
    def control_socket(self) -> Path:
        return self.run / "supervisor.sock"

    @property
    def relay_socket(self) -> Path:
        return self.run / "relay.sock"

    @property
    def logs(self) -> Path:
        return self.run / "logs"

    @property
    def pki(self) -> Path:
        return self.run / "pki"

    @property
    def kubeconfig(self) -> Path:
        return self.run / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def nodes(self) -> list[Node]:
        return [Node(f"node{i}", i, self.run / f"node{i}") for i in range(1, self.node_count + 1)]

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise ClusterError(f"no node {name!r} in cluster {self.name!r}: there are {[n.name for n in self.nodes]}")
