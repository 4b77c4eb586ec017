"""The pod template: the engine container, and the closed list of what a user may add."""

from __future__ import annotations

import json
from typing import Any, Final

from octavo_engine import contract
from octavo_operator import names
from octavo_operator.api.spec import InferenceServiceSpec, PodTemplate
from octavo_operator.plan.engine import engine_container
from octavo_operator.plan.settings import EngineDefaults
from octavo_operator.plan.volumes import volumes

_TAKEN_OVER: Final = {
    "nodeSelector": "node_selector",
    "affinity": "affinity",
    "tolerations": "tolerations",
    "topologySpreadConstraints": "topology_spread_constraints",
    "priorityClassName": "priority_class_name",
    "runtimeClassName": "runtime_class_name",
    "schedulerName": "scheduler_name",
    "imagePullSecrets": "image_pull_secrets",
}


def pod_template(name: str, spec: InferenceServiceSpec, defaults: EngineDefaults) -> dict[str, Any]:
    """Return the pod template of the service `name`, labelled with its own revision."""
    theirs = spec.pod_template
    pod_spec = _pod_spec(name, spec, defaults)
    metadata: dict[str, Any] = {"labels": {**(theirs.labels or {}), **names.labels(name)}}
    if theirs.annotations:
        metadata["annotations"] = dict(theirs.annotations)
    revision = names.short_hash(json.dumps([metadata, pod_spec], sort_keys=True))
    metadata["labels"][names.LABEL_REVISION] = revision
    return {"metadata": metadata, "spec": pod_spec}


def _pod_spec(name: str, spec: InferenceServiceSpec, defaults: EngineDefaults) -> dict[str, Any]:
    theirs, own_volumes = spec.pod_template, volumes(name, spec)
    return {
        "serviceAccountName": theirs.service_account_name or names.derived(name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": contract.termination_grace_seconds(spec.rollout.drain_timeout_seconds),
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            **(theirs.security_context or {}),
        },
        "containers": [engine_container(name, spec, defaults, own_volumes), *(theirs.sidecars or [])],
        "volumes": [each.entry() for each in own_volumes] + list(theirs.volumes or []),
        **_taken_over(theirs),
    }


def _taken_over(theirs: PodTemplate) -> dict[str, Any]:
    values = {key: getattr(theirs, attribute) for key, attribute in _TAKEN_OVER.items()}
    return {key: value for key, value in values.items() if value}
