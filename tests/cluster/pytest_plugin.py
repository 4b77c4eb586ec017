"""pytest_plugins = ["tests.cluster.pytest_plugin"]: the session's cluster, and a namespace of its own for each test."""

import uuid
from collections.abc import Iterator

import pytest

from .cluster import Cluster, LocalCluster
from .fixture import get_cluster


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster under test. It stays up after the session: the next one reuses it, `make demo-down` stops it."""
    return get_cluster()


@pytest.fixture(scope="session")
def local_cluster(cluster: Cluster) -> LocalCluster:
    """For tests that need this machine's own cluster: its audit log, its nodes' programs."""
    if not isinstance(cluster, LocalCluster):
        pytest.fail("this test needs the cluster built on this machine: unset OCTAVO_TEST_KUBECONFIG")
    return cluster


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A fresh namespace, restricted like all, deleted afterwards."""
    name = cluster.namespace(f"test-{uuid.uuid4().hex[:8]}")
    yield name
    cluster.delete_namespace(name, wait=False)
