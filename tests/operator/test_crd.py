"""The CRD on a real API server: what it accepts, and the sentences with which it refuses."""

from pathlib import Path
from typing import Any

import pytest

from octavo_operator.api import generate
from octavo_operator.api.crd import MAX_BYTES

from .conftest import Services
from .control_plane import Api

MODEL = {"uri": "scripted://"}
FIXED: dict[str, Any] = {"model": MODEL, "replicas": 1}
BUILTIN: dict[str, Any] = {"model": MODEL, "autoscaling": {"maxReplicas": 3}}


def scaled(**autoscaling: Any) -> dict[str, Any]:
    return {"model": MODEL, "autoscaling": autoscaling}


ACCEPTED: dict[str, dict[str, Any]] = {
    "the least": FIXED,
    "no replicas with Builtin": BUILTIN,
    "External without replicas": scaled(mode="External"),
    "zero replicas": {"model": MODEL, "replicas": 0},
    "one GPU": {**FIXED, "resources": {"limits": {"nvidia.com/gpu": 1}}},
    "GPUs as a string": {
        **FIXED,
        "resources": {"limits": {"nvidia.com/gpu": "2"}},
        "engine": {"tensorParallelSize": 2},
    },
    "a claim": {"model": {"uri": "pvc://weights/smollm"}, "replicas": 1},
    "a claim with a long name": {"model": {"uri": f"pvc://a-1.{'b' * 249}/x"}, "replicas": 1},
    "dots that lead nowhere": {"model": {"uri": "file:///m/a..b/...%2e/x%20y"}, "replicas": 1},
    "memory of the cache": {**FIXED, "engine": {"kvCache": {"memory": "4G"}}},
    "one cache": {"model": {**MODEL, "cache": {"emptyDir": {"sizeLimit": "1Gi"}}}, "replicas": 1},
    "every quantity": {**FIXED, "resources": {"limits": {"cpu": "1.5", "memory": "1024Mi"}, "requests": {"cpu": 1}}},
    "arguments": {**FIXED, "engine": {"args": ["--max-queue-requests=10", "$(X)", "a\nb"], "image": ""}},
    "adapters": {
        "model": {**MODEL, "adapters": [{"name": "a", "uri": "pvc://loras/a"}, {"name": "b", "uri": "file:///b"}]},
        "replicas": 1,
    },
    "deep pod parts": {
        **FIXED,
        "podTemplate": {
            "affinity": {"nodeAffinity": {}},
            "tolerations": [{"operator": "Exists"}],
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "sidecars": [{"name": "s", "image": "i"}],
        },
    },
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no replicas": ({"model": MODEL}, "replicas is required without autoscaling"),
    "replicas with Builtin": ({**BUILTIN, "replicas": 2}, "edit autoscaling.minReplicas and"),
    "negative replicas": ({**FIXED, "replicas": -1}, "should be greater than or equal to 0"),
    "min above max": (scaled(minReplicas=4, maxReplicas=3), "minReplicas must not exceed"),
    "min 0 before a gateway can wake": (scaled(minReplicas=0, maxReplicas=3), "greater than or equal to 1"),
    "no max": (scaled(minReplicas=1), "maxReplicas is required"),
    "down at or above up": (scaled(maxReplicas=3, scaleDown={"utilizationPercent": 80}), "must be below"),
    "unknown mode": (scaled(mode="builtin", maxReplicas=3), "Unsupported value"),
    "unknown scheme": ({"model": {"uri": "ftp://x"}, "replicas": 1}, "model.uri must be bundled://"),
    "two adapters of one name": (
        {"model": {**MODEL, "adapters": [{"name": "a", "uri": "file:///x"}] * 2}, "replicas": 1},
        "must be unique",
    ),
    "an adapter by the model's name": (
        {"model": {**MODEL, "servedName": "a", "adapters": [{"name": "a", "uri": "file:///x"}]}, "replicas": 1},
        "not the model's own servedName",
    ),
    "an adapter from nowhere": (
        {"model": {**MODEL, "adapters": [{"name": "a", "uri": "hf://x/y"}]}, "replicas": 1},
        "model.adapters[].uri must be file:///PATH/IN/THE/POD",
    ),
    "an adapter's way out": (
        {"model": {**MODEL, "adapters": [{"name": "a", "uri": "pvc://loras/../x"}]}, "replicas": 1},
        "must not contain '..'",
    ),
    "too many adapters": (
        {"model": {**MODEL, "adapters": [{"name": str(n), "uri": "file:///x"} for n in range(17)]}, "replicas": 1},
        "must have at most 16 items",
    ),
    "a way out": ({"model": {"uri": "pvc://weights/../etc"}, "replicas": 1}, "must not contain '..'"),
    "a claim without a name": ({"model": {"uri": "pvc:///x"}, "replicas": 1}, "needs the name"),
    "a claim's name with an empty part": ({"model": {"uri": "pvc://a..b/x"}, "replicas": 1}, "needs the name"),
    "a claim's name with a dash at a part's end": ({"model": {"uri": "pvc://a-.b"}, "replicas": 1}, "needs the name"),
    "a claim's name in capitals": ({"model": {"uri": "pvc://Weights/x"}, "replicas": 1}, "needs the name"),
    "a claim's name that is too long": ({"model": {"uri": f"pvc://{'x' * 254}/y"}, "replicas": 1}, "at most 253"),
    "an encoded way out": ({"model": {"uri": "file:///m/%2E./etc"}, "replicas": 1}, "not even percent-encoded"),
    "a way out between encoded slashes": (
        {"model": {"uri": "file:///m%2f..%2Fetc"}, "replicas": 1},
        "not even percent-encoded",
    ),
    "a newline": ({"model": {"uri": "file:///m\nx"}, "replicas": 1}, "must not contain control characters"),
    "a NUL": ({"model": {"uri": "scripted://\x00"}, "replicas": 1}, "must not contain control characters"),
    "a relative file": ({"model": {"uri": "file://models/x"}, "replicas": 1}, "needs an absolute path"),
    "two caches": (
        {"model": {**MODEL, "cache": {"emptyDir": {}, "hostPath": {"path": "/x"}}}, "replicas": 1},
        "exactly one of model.cache",
    ),
    "a cache size that is none": (
        {"model": {**MODEL, "cache": {"emptyDir": {"sizeLimit": "banana"}}}, "replicas": 1},
        "emptyDir.sizeLimit must be a Kubernetes quantity",
    ),
    "GPUs are not the ranks": (
        {**FIXED, "resources": {"limits": {"nvidia.com/gpu": 2}}},
        "must equal engine.tensorParallelSize",
    ),
    "ranks without GPUs": ({**FIXED, "engine": {"tensorParallelSize": 2}}, "must equal engine.tensorParallelSize"),
    "a word for GPUs": ({**FIXED, "resources": {"limits": {"nvidia.com/gpu": "two"}}}, "Kubernetes quantities"),
    "thousands of GPUs": ({**FIXED, "resources": {"limits": {"nvidia.com/gpu": "1k"}}}, "must be a whole number"),
    "negative memory": ({**FIXED, "resources": {"limits": {"memory": "-1Gi"}}}, "not negative"),
    "requests above limits": (
        {**FIXED, "resources": {"limits": {"cpu": "500m"}, "requests": {"cpu": 1}}},
        "must not exceed resources.limits",
    ),
    "no pod may move": ({**FIXED, "rollout": {"maxSurge": 0, "maxUnavailable": 0}}, "must not both be 0"),
    "our own flags": ({**FIXED, "engine": {"args": ["--port=1"]}}, "engine.args must not set"),
    "a field of a later feature": ({**FIXED, "auth": {"secretName": "keys"}}, "unknown field"),
    "an unknown dtype": ({**FIXED, "engine": {"dtype": "bfloat16"}}, "Unsupported value"),
    "another block size": ({**FIXED, "engine": {"kvCache": {"blockSize": 32}}}, "Unsupported value"),
    "no memory": ({**FIXED, "engine": {"kvCache": {"memory": "4 GB"}}}, "4Gi, 512Mi, 4G"),
    "too many arguments": ({**FIXED, "engine": {"args": ["x"] * 65}}, "must have at most 64 items"),
    "a null model": ({"model": None, "replicas": 1}, "Required value"),
}


@pytest.mark.parametrize("spec", ACCEPTED.values(), ids=ACCEPTED)
def test_accepts(api: Api, spec: dict[str, Any]) -> None:
    assert Services(api, "default").try_create(spec, dry_run=True) == (201, "")


@pytest.mark.parametrize(("spec", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refuses_with_a_sentence(api: Api, spec: dict[str, Any], sentence: str) -> None:
    status, message = Services(api, "default").try_create(spec, dry_run=True)
    assert status in (400, 422)
    assert sentence in message


def test_a_leftover_number_may_stay_or_go_under_builtin_but_not_change(services: Services) -> None:
    services.create(FIXED)
    assert services.edit({"autoscaling": {"maxReplicas": 3}}) == (200, "")
    assert services.edit({"suspend": True}) == (200, "")
    status, message = services.edit({"replicas": 2})
    assert status == 422
    assert "edit autoscaling.minReplicas and autoscaling.maxReplicas instead" in message
    assert services.edit({"replicas": None}) == (200, "")
    assert services.edit({"replicas": 1})[0] == 422
    assert services.edit({"autoscaling": None})[0] == 422
    assert services.edit({"autoscaling": None, "replicas": 2}) == (200, "")


def test_the_scale_subresource_reads_and_writes_replicas(services: Services) -> None:
    services.create(FIXED)
    path = f"{services.root}/demo/scale"
    services.api.merge(path, {"spec": {"replicas": 3}})
    assert services.get()["spec"]["replicas"] == 3
    scale = services.api.get(path)
    assert scale is not None
    assert scale["spec"]["replicas"] == 3


def test_kubectl_prints_the_columns_people_look_for(services: Services) -> None:
    services.create(FIXED)
    table = services.api.http.get(services.root, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    names = [column["name"] for column in table.json()["columnDefinitions"]]
    assert names == ["Name", "Model", "Ready", "Replicas", "KV", "Queue", "Age"]


def test_the_generated_files_are_current_and_small() -> None:
    root = Path(__file__).parents[2]
    assert generate.stale(root) == []
    assert (root / generate.PLAIN).stat().st_size <= MAX_BYTES
