"""Network policies are enforced, on both nodes, for traffic within a node and between nodes."""

from functools import partial
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.pods import on_node, probe_pod, service
from tests.cluster.waiting import wait_until

pytestmark = pytest.mark.cluster


def only_friends(namespace: str) -> dict[str, Any]:
    friends = {"podSelector": {"matchLabels": {"friend": "yes"}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "only-friends", "namespace": namespace},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [friends]}],
        },
    }


def reaches(cluster: Cluster, namespace: str, client: str) -> bool:
    try:
        answer = cluster.kubectl("exec", "-n", namespace, client, "--", "/bin/probe", "get", "http://web/")
    except ClusterError as error:
        if "probe:" not in str(error):  # the client did not even run
            raise
        return False
    return answer == "web\n"


def refused(cluster: Cluster, namespace: str, client: str) -> bool:
    return not reaches(cluster, namespace, client)


@pytest.mark.parametrize("server_node", ["node1", "node2"])
def test_a_stranger_is_refused_and_a_friend_passes(cluster: Cluster, namespace: str, server_node: str) -> None:
    pods = [probe_pod("web", namespace, **on_node(server_node))]
    for kind in ("friend", "stranger"):
        for node in ("node1", "node2"):
            pod = probe_pod(f"{kind}-{node}", namespace, **on_node(node))
            pod["metadata"]["labels"]["friend"] = "yes" if kind == "friend" else "no"
            pods.append(pod)
    cluster.apply([*pods, service("web", namespace)])
    for pod in pods:
        cluster.wait(f"pod/{pod['metadata']['name']}", "condition=Ready", namespace)
    clients = [pod["metadata"]["name"] for pod in pods[1:]]
    for client in clients:  # before the policy, everybody
        wait_until(partial(reaches, cluster, namespace, client), 20, f"{client} reaches web")
    cluster.apply(only_friends(namespace))
    for client in (name for name in clients if name.startswith("stranger")):
        wait_until(partial(refused, cluster, namespace, client), 20, f"{client} is refused")
    for client in (name for name in clients if name.startswith("friend")):
        wait_until(partial(reaches, cluster, namespace, client), 20, f"{client} passes")
