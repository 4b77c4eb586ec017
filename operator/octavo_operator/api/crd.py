"""The CustomResourceDefinition, built from the types."""

from __future__ import annotations

from typing import Any, Final

from octavo_engine import contract
from octavo_operator.api.schema import structural
from octavo_operator.api.spec import InferenceServiceSpec
from octavo_operator.api.status import InferenceServiceStatus

SHORT_NAME: Final = "ois"
CATEGORY: Final = "octavo"
MAX_BYTES: Final = 200 * 1024

_COLUMNS: Final = (
    ("Model", "string", ".spec.model.uri"),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
    ("Replicas", "integer", ".status.replicas"),
    ("KV", "integer", ".status.kv.utilizationPercent"),
    ("Queue", "integer", ".status.kv.queueDepth"),
    ("Age", "date", ".metadata.creationTimestamp"),
)


def manifest() -> dict[str, Any]:
    """Return the CustomResourceDefinition of InferenceService as a plain dict."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{contract.PLURAL}.{contract.API_GROUP}"},
        "spec": {
            "group": contract.API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": contract.KIND,
                "listKind": f"{contract.KIND}List",
                "plural": contract.PLURAL,
                "singular": contract.PLURAL.removesuffix("s"),
                "shortNames": [SHORT_NAME],
                "categories": [CATEGORY],
            },
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    return {
        "name": contract.API_VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [{"name": name, "type": kind, "jsonPath": path} for name, kind, path in _COLUMNS],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": _root()},
    }


def _root() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "A language model served by Octavo's engine.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(InferenceServiceSpec),
            "status": structural(InferenceServiceStatus),
        },
    }
