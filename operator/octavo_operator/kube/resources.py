"""The kinds of object the operator touches, and their URL paths."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import quote

from octavo_engine import contract


class Resource(NamedTuple):
    """One namespaced kind of the Kubernetes API."""

    group: str
    version: str
    kind: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of the collection, one object or one of its subresources; no namespace: the cluster."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = [] if namespace is None else ["namespaces", namespace]
        parts = [root, *inside, self.plural, *(each for each in (name, subresource) if each)]
        return "/".join([parts[0], *(quote(each, safe="") for each in parts[1:])])


INFERENCE_SERVICES: Final = Resource(contract.API_GROUP, contract.API_VERSION, contract.KIND, contract.PLURAL)
DEPLOYMENTS: Final = Resource("apps", "v1", "Deployment", "deployments")
DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
SERVICES: Final = Resource("", "v1", "Service", "services")
SERVICE_ACCOUNTS: Final = Resource("", "v1", "ServiceAccount", "serviceaccounts")
CONFIG_MAPS: Final = Resource("", "v1", "ConfigMap", "configmaps")
PODS: Final = Resource("", "v1", "Pod", "pods")

CHILDREN: Final = (DEPLOYMENTS, SERVICES, DISRUPTION_BUDGETS, SERVICE_ACCOUNTS, CONFIG_MAPS)
"""Every kind of child; the operator watches these and pods, by label."""

_BY_KIND: Final = {each.kind: each for each in CHILDREN}


def resource_of(manifest: dict[str, Any]) -> Resource:
    """Return the resource of a child's manifest."""
    return _BY_KIND[manifest["kind"]]
