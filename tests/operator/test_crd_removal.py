"""A CRD that is deleted while services exist: its kind may not be patched, and everything goes all the same."""

from pathlib import Path
from typing import Any

import httpx

from octavo_operator.api.crd import manifest

from .conftest import Services
from .control_plane import Api, ControlPlane, eventually
from .operator_process import Operator

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = f"{CRDS}/{manifest()['metadata']['name']}"
FIXED: dict[str, Any] = {"model": {"uri": "scripted://"}, "replicas": 1}


def readiness(operator: Operator) -> tuple[int, str]:
    answer = httpx.get(f"{operator.health}/readyz", trust_env=False)
    return answer.status_code, answer.text


def test_services_whose_crd_goes_are_released_and_the_operator_says_why_it_is_not_ready(
    plane: ControlPlane, api: Api, services: Services, operator_log: Path
) -> None:
    with Operator(plane.kubeconfig("operator"), operator_log) as operator:
        operator.leading()
        services.create(FIXED)
        eventually(services.settled, "settled")
    api.delete(CRD)
    eventually(lambda: services.get()["metadata"].get("deletionTimestamp"), "the service is being deleted")
    try:
        with Operator(plane.kubeconfig("operator"), operator_log) as operator:
            eventually(lambda: api.get(CRD) is None, "the CRD is gone")
            missing = (503, "the CRD of InferenceService is not installed")
            eventually(lambda: readiness(operator) == missing, "it is not ready and says why")
            assert "the CRD of InferenceService is being deleted" in operator_log.read_text()
            api.create(CRDS, manifest())
            eventually(lambda: readiness(operator) == (200, "ok"), "it is ready again")
            services.create(FIXED)
            eventually(services.settled, "it serves again")
    finally:
        if api.get(CRD) is None:
            api.create(CRDS, manifest())
