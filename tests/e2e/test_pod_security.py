"""Everything runs under the restricted Pod Security level, enforced by the API server."""

from __future__ import annotations

import pytest
from examples.demo import stage

from tests.cluster.errors import ClusterError
from tests.cluster.pods import probe_pod

from .fleet import Fleet, InferenceService, scripted

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]  # the first test builds images and installs, too


def test_every_pod_passes_the_restricted_level(fleet: Fleet, service: InferenceService) -> None:
    """The API server judges: labelling a namespace warns of each pod in it that the level would refuse."""
    service.apply(scripted(1))
    service.wait_ready()
    for namespace in (stage.SYSTEM_NAMESPACE, service.namespace, "kube-system"):
        assert fleet.cluster.get("pods", "-n", namespace)["items"]
        label = "pod-security.kubernetes.io/enforce=restricted"
        command = ["label", "--overwrite", "--dry-run=server", "--warnings-as-errors", "ns", namespace, label]
        fleet.cluster.kubectl(*command)


def test_the_level_is_enforced_where_services_run(service: InferenceService) -> None:
    pod = probe_pod("root", service.namespace)
    pod["spec"]["securityContext"] = {"runAsUser": 0}
    with pytest.raises(ClusterError, match='violates PodSecurity "restricted'):
        service.cluster.apply(pod)
