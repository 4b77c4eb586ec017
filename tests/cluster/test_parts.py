"""The cluster has the parts that Octavo's tests rely on."""

import json
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, LocalCluster
from tests.cluster.errors import ClusterError
from tests.cluster.image import Entry, Image, write_archive
from tests.cluster.importing import images, names_and_digests
from tests.cluster.pods import RESTRICTED_POD, on_node, probe_pod, service
from tests.cluster.versions import PROBE_IMAGE
from tests.cluster.waiting import wait_until

pytestmark = pytest.mark.cluster


def probe(cluster: Cluster, namespace: str, pod: str, *arguments: str) -> str:
    return cluster.kubectl("exec", "-n", namespace, pod, "--", "/bin/probe", *arguments)


def test_two_nodes_are_ready_and_have_fake_gpus(local_cluster: LocalCluster) -> None:
    nodes = local_cluster.get("nodes")["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["node1", "node2"]
    for node in nodes:
        assert {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"] == "True"
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == str(local_cluster.facts["gpus"])


def test_no_program_of_the_cluster_has_died(local_cluster: LocalCluster) -> None:
    for where in ("control", "node1", "node2"):
        assert {n: r["last_exit"] for n, r in local_cluster.programs(where).items() if r["restarts"]} == {}


def test_a_restricted_pod_resolves_names_and_reaches_a_service_on_the_other_node(
    cluster: Cluster, namespace: str
) -> None:
    web = probe_pod("web", namespace, **on_node("node1"))
    client = probe_pod("client", namespace, **on_node("node2"))
    cluster.apply([web, client, service("web", namespace)])
    cluster.wait("pod/web", "condition=Ready", namespace)
    cluster.wait("pod/client", "condition=Ready", namespace)
    address = cluster.get("service", "web", "-n", namespace)["spec"]["clusterIP"]
    assert address in probe(cluster, namespace, "client", "resolve", "web")
    assert "10.96.0.1" in probe(cluster, namespace, "client", "resolve", "kubernetes.default.svc.cluster.local")
    assert probe(cluster, namespace, "client", "get", "http://web/") == "web\n"


def test_a_name_outside_the_cluster_fails_at_once(cluster: Cluster, namespace: str) -> None:
    cluster.apply(probe_pod("client", namespace))
    cluster.wait("pod/client", "condition=Ready", namespace)
    with pytest.raises(ClusterError, match="no such host"):
        probe(cluster, namespace, "client", "resolve", "example.invalid")


def test_gpus_run_out(local_cluster: LocalCluster, namespace: str) -> None:
    every_gpu = local_cluster.facts["gpus"]
    local_cluster.apply([probe_pod(f"holder{i}", namespace, gpus=every_gpu) for i in (1, 2)])
    for name in ("holder1", "holder2"):
        local_cluster.wait(f"pod/{name}", "condition=Ready", namespace)
    devices = local_cluster.kubectl("exec", "-n", namespace, "holder1", "--", "env")
    assert devices.count("fake-gpu-") == every_gpu
    local_cluster.apply(probe_pod("late", namespace, gpus=1))
    local_cluster.wait("pod/late", "condition=PodScheduled=False", namespace)
    conditions = local_cluster.get("pod", "late", "-n", namespace)["status"]["conditions"]
    assert "Insufficient nvidia.com/gpu" in conditions[0]["message"]
    local_cluster.kubectl("delete", "pod", "holder1", "-n", namespace, "--wait")
    local_cluster.wait("pod/late", "condition=Ready", namespace)


def test_the_audit_log_has_every_write_with_its_author(local_cluster: LocalCluster, namespace: str) -> None:
    local_cluster.kubectl("create", "configmap", "witness", "-n", namespace)
    events = [json.loads(line) for line in local_cluster.audit_log.read_text().splitlines() if namespace in line]
    assert ("create", "configmaps", "witness", "admin") in [
        (e["verb"], e["objectRef"]["resource"], e["objectRef"].get("name"), e["user"]["username"]) for e in events
    ]


@pytest.mark.parametrize("where", ["namespace", "kube-system"])
def test_pod_security_refuses_a_root_pod_everywhere(cluster: Cluster, namespace: str, where: str) -> None:
    security = {**RESTRICTED_POD, "runAsNonRoot": False, "runAsUser": 0}
    target = namespace if where == "namespace" else where
    with pytest.raises(ClusterError, match='violates PodSecurity "restricted'):
        cluster.apply(probe_pod("root", target, securityContext=security))


def test_a_token_is_reviewed(cluster: Cluster, namespace: str) -> None:
    token = cluster.kubectl("create", "token", "default", "-n", namespace).strip()
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = json.loads(cluster.kubectl("create", "-o", "json", "-f", "-", input=json.dumps(review)))
    assert answer["status"]["user"]["username"] == f"system:serviceaccount:{namespace}:default"


def test_a_static_volume_shows_a_host_folder_read_only(
    local_cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "wheel").write_text("torch")
    claim = local_cluster.static_volume("wheels", namespace, tmp_path)
    volume = {"name": "wheels", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    pod = probe_pod("reader", namespace, volumes=[volume])
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "wheels", "mountPath": "/wheels", "readOnly": True}]
    local_cluster.apply(pod)
    local_cluster.wait("pod/reader", "condition=Ready", namespace)
    assert local_cluster.kubectl("exec", "-n", namespace, "reader", "--", "cat", "/wheels/wheel") == "torch"
    with pytest.raises(ClusterError, match="Read-only file system"):
        local_cluster.kubectl("exec", "-n", namespace, "reader", "--", "touch", "/wheels/new")
    local_cluster.kubectl("delete", "pod/reader", "-n", namespace)
    local_cluster.delete_static_volume("wheels", namespace)
    assert (tmp_path / "wheel").read_text() == "torch"


def test_an_imported_image_runs_on_both_nodes(local_cluster: LocalCluster, namespace: str, tmp_path: Path) -> None:
    archive, name = tmp_path / "own.tar", f"octavo.test/{namespace}:1"
    program = (local_cluster.binaries / "probe").read_bytes()
    write_archive(archive, [Image(name, [Entry("bin"), Entry("bin/probe", program)], ["/bin/probe"])])
    local_cluster.import_images(archive)
    for place in local_cluster.layout.nodes:
        assert names_and_digests(archive) <= images(local_cluster.built, place)
    local_cluster.import_images(archive)  # nothing to do
    for node in ("node1", "node2"):
        pod = probe_pod(f"own-{node}", namespace, **on_node(node))
        pod["spec"]["containers"][0]["image"] = local_cluster.image(name)
        local_cluster.apply(pod)
        local_cluster.wait(f"pod/own-{node}", "condition=Ready", namespace)


def test_what_is_no_image_archive_is_said_so(local_cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "text.tar").write_text("hello")
    with pytest.raises(ClusterError, match="no OCI image archive"):
        local_cluster.import_images(tmp_path / "text.tar")


def test_a_drained_node_is_left_by_its_pods_and_used_again_after(cluster: Cluster, namespace: str) -> None:
    template = probe_pod("web", namespace)
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
        },
    }
    cluster.apply(deployment)
    cluster.wait("deployment/web", "condition=Available", namespace)
    node = cluster.get("pods", "-n", namespace)["items"][0]["spec"]["nodeName"]
    try:
        cluster.kubectl("drain", node, "--pod-selector=app=web", "--ignore-daemonsets", "--timeout=60s")
        wait_until(lambda: node not in nodes_of_ready(cluster, namespace), 60, f"web runs elsewhere than on {node}")
    finally:
        cluster.kubectl("uncordon", node)


def nodes_of_ready(cluster: Cluster, namespace: str) -> list[str]:
    pods = cluster.get("pods", "-n", namespace)["items"]
    ready = [p for p in pods if any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"]["conditions"])]
    return [pod["spec"]["nodeName"] for pod in ready] or ["none"]


def test_the_probe_image_is_what_the_nodes_start_with(local_cluster: LocalCluster) -> None:
    for node in local_cluster.layout.nodes:
        assert PROBE_IMAGE in {name for name, _ in images(local_cluster.built, node)}
