"""Parts of the cluster can be broken on purpose, and mended."""

import httpx
import pytest

from tests.cluster.cluster import LocalCluster
from tests.cluster.errors import ClusterError
from tests.cluster.pods import on_node, probe_pod
from tests.cluster.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_a_killed_node_takes_its_pods_along_and_comes_back(local_cluster: LocalCluster, namespace: str) -> None:
    local_cluster.apply([probe_pod(f"web-{node}", namespace, **on_node(node)) for node in ("node1", "node2")])
    for node in ("node1", "node2"):
        local_cluster.wait(f"pod/web-{node}", "condition=Ready", namespace)
    local_cluster.kill_node("node2")
    try:
        with pytest.raises(ClusterError):
            local_cluster.kubectl("exec", "-n", namespace, "web-node2", "--", "/bin/probe", "id", timeout=30)
        assert local_cluster.kubectl("exec", "-n", namespace, "web-node1", "--", "/bin/probe", "id")
    finally:
        local_cluster.start_node("node2")
    wait_until(
        lambda: local_cluster.kubectl("exec", "-n", namespace, "web-node2", "--", "/bin/probe", "id", check=False),
        60,
        "the pod of the killed node runs again",
    )


def test_a_stopped_kubelet_leaves_its_pods_running(local_cluster: LocalCluster, namespace: str) -> None:
    local_cluster.apply(probe_pod("web", namespace, **on_node("node2")))
    local_cluster.wait("pod/web", "condition=Ready", namespace)
    url = local_cluster.relay(f"{namespace}/pod/web:8000")
    local_cluster.stop_program("node2", "kubelet", kill=True)
    try:
        assert httpx.get(url).status_code == 200
    finally:
        local_cluster.start_program("node2", "kubelet")
    local_cluster.wait("node/node2", "condition=Ready", seconds=60)
    # A kubelet that starts forgets its devices; the plugin registers again.
    gpus = str(local_cluster.facts["gpus"])
    wait_until(
        lambda: local_cluster.get("node", "node2")["status"]["allocatable"].get("nvidia.com/gpu") == gpus,
        60,
        "the fake GPUs are back after a restart of the kubelet",
    )


def test_the_api_server_can_be_away_for_a_while(local_cluster: LocalCluster) -> None:
    local_cluster.stop_program("control", "kube-apiserver", kill=True)
    try:
        with pytest.raises(ClusterError):
            local_cluster.kubectl("get", "--raw", "/readyz")
    finally:
        local_cluster.start_program("control", "kube-apiserver")
    readyz = ("get", "--raw", "/readyz")
    wait_until(lambda: local_cluster.kubectl(*readyz, check=False) == "ok", 60, "API server ready again")
