"""`plan(spec, observed) -> Children`: everything that should exist for one InferenceService. Pure, no I/O."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from octavo_engine import contract
from octavo_operator import names
from octavo_operator.api.spec import InferenceServiceSpec
from octavo_operator.plan.pod import pod_template
from octavo_operator.plan.replicas import LiveReplicas, Replicas, wanted_replicas
from octavo_operator.plan.settings import EngineDefaults
from octavo_operator.plan.volumes import ADAPTERS_FILE, adapter_folders

Manifest = dict[str, Any]


class Owner(NamedTuple):
    """The InferenceService that the children belong to."""

    name: str
    namespace: str
    uid: str


class Observed(NamedTuple):
    """What the plan depends on beside the spec: the live Deployment's replicas, the autoscaler's last word."""

    replicas: LiveReplicas | None = None
    target: int | None = None


class Children(NamedTuple):
    """The wanted children; `supporting` are applied before the Deployment, which needs them."""

    supporting: tuple[Manifest, ...]
    deployment: Manifest
    replicas: Replicas

    def all(self) -> tuple[Manifest, ...]:
        """Return every child in the order to apply them."""
        return (*self.supporting, self.deployment)

    def with_replicas(self, count: int) -> Children:
        """Return the same children with other replicas in the Deployment: a step towards the wanted number."""
        spec = {**self.deployment["spec"], "replicas": count}
        return self._replace(deployment={**self.deployment, "spec": spec})


def plan(owner: Owner, spec: InferenceServiceSpec, defaults: EngineDefaults, observed: Observed) -> Children:
    """Return the children that `spec` wants, given what is observed."""
    replicas = wanted_replicas(spec, observed.replicas, observed.target)
    supporting = [_service(owner), _disruption_budget(owner), _connection(owner, spec)]
    if spec.model.adapters is not None:
        supporting.append(_adapters(owner, spec))
    if not spec.pod_template.service_account_name:
        supporting.insert(0, _service_account(owner))
    children = (_stamped(each) for each in supporting)
    return Children(tuple(children), _stamped(_deployment(owner, spec, defaults, replicas)), replicas)


def selector_text(name: str, deployment: Manifest) -> str:
    """Return `status.selector`: this revision's pods of the service, as a label selector string."""
    revision = deployment["spec"]["template"]["metadata"]["labels"][names.LABEL_REVISION]
    wanted = {**names.selector(name), names.LABEL_REVISION: revision}
    return ",".join(f"{key}={value}" for key, value in sorted(wanted.items()))


def rendered_hash(manifest: Manifest) -> str:
    """Return the hash of a child as rendered. Replicas are not part of it: they are compared with the live number."""
    spec = {key: value for key, value in manifest.get("spec", {}).items() if key != "replicas"}
    return names.short_hash(json.dumps({**manifest, "spec": spec}, sort_keys=True))


def _stamped(manifest: Manifest) -> Manifest:
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), contract.ANNOTATION_RENDERED_HASH: rendered_hash(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _metadata(owner: Owner, name: str) -> Manifest:
    return {
        "name": name,
        "namespace": owner.namespace,
        "labels": names.labels(owner.name),
        "ownerReferences": [
            {
                "apiVersion": f"{contract.API_GROUP}/{contract.API_VERSION}",
                "kind": contract.KIND,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def _deployment(owner: Owner, spec: InferenceServiceSpec, defaults: EngineDefaults, replicas: Replicas) -> Manifest:
    metadata = _metadata(owner, names.derived(owner.name))
    surge, unavailable = _rollout(spec)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata, "annotations": {**replicas.annotations, **defaults.record()}},
        "spec": {
            "replicas": replicas.wanted,
            "selector": {"matchLabels": names.selector(owner.name)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
            },
            "progressDeadlineSeconds": spec.rollout.startup_timeout_seconds + 60,
            "revisionHistoryLimit": 3,
            "template": pod_template(owner.name, spec, defaults),
        },
    }


def _rollout(spec: InferenceServiceSpec) -> tuple[int, int]:
    """Return (maxSurge, maxUnavailable). A surge pod needs free GPUs, which a full node never has: 0/1 with them."""
    surge, unavailable = spec.rollout.max_surge, spec.rollout.max_unavailable
    default_surge, default_unavailable = (0, 1) if spec.gpus else (1, 0)
    if surge is None and unavailable is None:
        return default_surge, default_unavailable
    if surge is None:
        return (1 if unavailable == 0 else default_surge), unavailable or 0
    if unavailable is None:
        return surge, (1 if surge == 0 else default_unavailable)
    return surge, unavailable


def _service(owner: Owner) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(owner, names.service(owner.name)),
        "spec": {
            "type": "ClusterIP",
            "selector": names.selector(owner.name),
            "ports": [
                {
                    "name": "http",
                    "port": contract.PORT_HTTP,
                    "targetPort": "http",
                    "protocol": "TCP",
                    "appProtocol": "http",
                }
            ],
        },
    }


def _disruption_budget(owner: Owner) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(owner, names.derived(owner.name)),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(owner.name)},
        },
    }


def _service_account(owner: Owner) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(owner, names.derived(owner.name)),
        "automountServiceAccountToken": False,
    }


def _connection(owner: Owner, spec: InferenceServiceSpec) -> Manifest:
    """Return the ConfigMap that an application takes by `envFrom`: the variables OpenAI's clients read."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(owner, names.derived(owner.name)),
        "data": {
            "OPENAI_BASE_URL": address(owner),
            "OPENAI_MODEL": spec.model.served_name or owner.name,
        },
    }


def _adapters(owner: Owner, spec: InferenceServiceSpec) -> Manifest:
    """Return the ConfigMap that running engines follow: its change is no new pod."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(owner, names.adapters(owner.name)),
        "data": {ADAPTERS_FILE: json.dumps(adapter_folders(spec.model), sort_keys=True)},
    }


def address(owner: Owner) -> str:
    """Return the base URL of the OpenAI API on the service's own Service."""
    return f"http://{names.service(owner.name)}.{owner.namespace}.svc:{contract.PORT_HTTP}/v1"
