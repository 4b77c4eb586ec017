"""The rights of the operator's service account: no more than the code uses, no `*`. The chart's are the same."""

from typing import Any

GROUP = "serving.octavo.dev"
RULES: list[dict[str, Any]] = [
    {
        "apiGroups": [GROUP],
        "resources": ["inferenceservices"],
        "verbs": ["get", "list", "watch", "patch"],
    },
    {"apiGroups": [GROUP], "resources": ["inferenceservices/status"], "verbs": ["update"]},
    {"apiGroups": [GROUP], "resources": ["inferenceservices/scale"], "verbs": ["patch"]},
    {"apiGroups": [GROUP], "resources": ["inferenceservices/finalizers"], "verbs": ["update"]},
    {
        "apiGroups": [""],
        "resources": ["services", "serviceaccounts", "configmaps"],
        "verbs": ["get", "list", "watch", "create", "patch"],
    },
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list", "watch", "create", "patch"]},
    {
        "apiGroups": ["policy"],
        "resources": ["poddisruptionbudgets"],
        "verbs": ["get", "list", "watch", "create", "patch"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
]
LEASE_RULES: list[dict[str, Any]] = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
]


def manifests(user: str, lease_namespace: str) -> list[tuple[str, dict[str, Any]]]:
    """(path to create at, object) of the roles and bindings for `user`."""
    api = "rbac.authorization.k8s.io/v1"
    root = "/apis/rbac.authorization.k8s.io/v1"
    inside = f"{root}/namespaces/{lease_namespace}"
    name = {"name": "octavo-operator"}
    subjects = [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]

    def reference(kind: str) -> dict[str, str]:
        return {"kind": kind, "apiGroup": "rbac.authorization.k8s.io", **name}

    return [
        (f"{root}/clusterroles", {"apiVersion": api, "kind": "ClusterRole", "metadata": name, "rules": RULES}),
        (
            f"{root}/clusterrolebindings",
            {
                "apiVersion": api,
                "kind": "ClusterRoleBinding",
                "metadata": name,
                "subjects": subjects,
                "roleRef": reference("ClusterRole"),
            },
        ),
        (f"{inside}/roles", {"apiVersion": api, "kind": "Role", "metadata": name, "rules": LEASE_RULES}),
        (
            f"{inside}/rolebindings",
            {
                "apiVersion": api,
                "kind": "RoleBinding",
                "metadata": name,
                "subjects": subjects,
                "roleRef": reference("Role"),
            },
        ),
    ]
