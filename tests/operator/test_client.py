"""What the API server's refusals mean, asked of a real one."""

import asyncio

import pytest

from octavo_operator.kube import resources
from octavo_operator.kube.client import NAMESPACE_TERMINATING, ApiError, Client
from octavo_operator.kube.credentials import load_credentials

from .control_plane import Api, ControlPlane


def test_a_terminating_namespace_is_told_from_missing_rights(plane: ControlPlane, api: Api, namespace: str) -> None:
    held = {"metadata": {"name": "held", "finalizers": ["octavo.dev/test"]}}
    api.create(f"/api/v1/namespaces/{namespace}/configmaps", held)
    api.delete(f"/api/v1/namespaces/{namespace}")
    try:
        error = asyncio.run(_refusal(plane, namespace))
        assert (error.status, error.reason) == (403, NAMESPACE_TERMINATING)
    finally:
        api.merge(f"/api/v1/namespaces/{namespace}/configmaps/held", {"metadata": {"finalizers": None}})


async def _refusal(plane: ControlPlane, namespace: str) -> ApiError:
    client = Client(load_credentials(plane.kubeconfig("admin")), fence=lambda: None)
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new", "namespace": namespace}}
    try:
        with pytest.raises(ApiError) as refused:
            await client.apply(resources.CONFIG_MAPS, manifest, force=False)
        return refused.value
    finally:
        await client.close()
