"""The rights of the operator under test: the chart's own rules, so that a right that is missing there fails here."""

import re
from pathlib import Path
from typing import Any

import yaml

_HELPERS = Path(__file__).parents[2] / "charts/octavo/templates/_helpers.tpl"
API = "rbac.authorization.k8s.io"


def rules() -> list[dict[str, Any]]:
    """The rules the chart gives the operator in the namespaces it serves."""
    found = re.search(r'define "octavo\.rules" -\}\}\n(.*?)\n\{\{- end', _HELPERS.read_text(), re.DOTALL)
    assert found, f"{_HELPERS} defines no octavo.rules"
    return list(yaml.safe_load(found[1]))


LEASE = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}]


def manifests(user: str, lease_namespace: str) -> list[tuple[str, dict[str, Any]]]:
    """(path to create at, object) of the roles and bindings for `user`, who serves the whole cluster."""
    root = f"/apis/{API}/v1"
    inside = f"{root}/namespaces/{lease_namespace}"
    return [
        (f"{root}/clusterroles", _role("ClusterRole", rules())),
        (f"{root}/clusterrolebindings", _binding("ClusterRole", user)),
        (f"{inside}/roles", _role("Role", LEASE)),
        (f"{inside}/rolebindings", _binding("Role", user)),
    ]


def namespaced(user: str, namespace: str) -> list[tuple[str, dict[str, Any]]]:
    """(path to create at, object) of the role and binding for `user`, who serves one namespace and leads there."""
    inside = f"/apis/{API}/v1/namespaces/{namespace}"
    return [
        (f"{inside}/roles", _role("Role", [*rules(), *LEASE])),
        (f"{inside}/rolebindings", _binding("Role", user)),
    ]


def _role(kind: str, granted: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": f"{API}/v1", "kind": kind, "metadata": {"name": "octavo-operator"}, "rules": granted}


def _binding(kind: str, user: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{API}/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": "octavo-operator"},
        "subjects": [{"kind": "User", "apiGroup": API, "name": user}],
        "roleRef": {"kind": kind, "apiGroup": API, "name": "octavo-operator"},
    }
