"""Pods for tests: the probe image (go/probe) under the restricted Pod Security level."""

from typing import Any

from .versions import PROBE_IMAGE

RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_CONTAINER = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
PORT = 8000


def probe_pod(name: str, namespace: str, *, gpus: int = 0, **spec: Any) -> dict[str, Any]:
    """A pod that serves HTTP on port 8000 (/ its name, /echo, /ticks) and can be exec'd into; `spec` adds fields."""
    container: dict[str, Any] = {
        "name": "probe",
        "image": PROBE_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": ["serve", f":{PORT}"],
        "securityContext": RESTRICTED_CONTAINER,
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
    }
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "securityContext": RESTRICTED_POD,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            **spec,
        },
    }


def service(name: str, namespace: str, port: int = 80) -> dict[str, Any]:
    """A Service over the pods labelled app=NAME."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": name}, "ports": [{"port": port, "targetPort": PORT}]},
    }


def on_node(name: str) -> dict[str, Any]:
    return {"nodeSelector": {"kubernetes.io/hostname": name}}
