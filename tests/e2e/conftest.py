"""The installed product: images built and imported, the operator installed by Helm once for the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import LocalCluster

from .fleet import Fleet, InferenceService, install
from .load import Load


@pytest.fixture(scope="session")
def fleet(local_cluster: LocalCluster) -> Fleet:
    """The cluster with this checkout's operator in it."""
    return install(local_cluster)


@pytest.fixture
def service(fleet: Fleet, namespace: str) -> Iterator[InferenceService]:
    """A service's handle in a namespace where engine pods can run."""
    yield fleet.service(namespace)
    fleet.cluster.kubectl("delete", "ois", "--all", "-n", namespace, timeout=180)


@pytest.fixture
def load(fleet: Fleet) -> Iterator[Load]:
    """Clients on a thread of their own; what still runs at the end of the test is cancelled."""
    with Load(fleet.cluster.proxy_url) as clients:
        yield clients
