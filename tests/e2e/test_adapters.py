"""A service's adapters in running pods: its list changes, and no pod does."""

from __future__ import annotations

import json

import httpx
import pytest

from octavo_engine import contract
from tests.server.launch import NO_TLS

from .fleet import InferenceService, names_of, scripted

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

FOLDER = "/loras/sql"
FILES = {"adapter_config.json": json.dumps({"peft_type": "LORA"}), "adapter_model.safetensors": "weights"}


def adapter(name: str) -> dict[str, str]:
    return {"name": name, "uri": f"file://{FOLDER}"}


def test_adapters_come_and_go_without_a_new_pod(service: InferenceService) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sql", "namespace": service.namespace}}
    service.cluster.apply({**config, "data": FILES})
    template = {
        "volumes": [{"name": "sql", "configMap": {"name": "sql"}}],
        "volumeMounts": [{"name": "sql", "mountPath": FOLDER, "readOnly": True}],
    }
    model = scripted()["model"]
    service.apply(scripted(podTemplate=template) | {"model": {**model, "adapters": [adapter("first")]}})
    service.wait_ready(240)
    before = names_of(service.pods())
    url = service.cluster.relay(f"{service.namespace}/{service.name}:{contract.PORT_HTTP}")

    def models() -> list[str]:
        return [card["id"] for card in httpx.get(f"{url}/v1/models", verify=NO_TLS).json()["data"]]

    def text(name: str) -> str:
        body = {"model": name, "prompt": "once upon a time", "max_tokens": 16, "temperature": 0}
        answer = httpx.post(f"{url}/v1/completions", json=body, verify=NO_TLS)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    assert models() == [service.name, "first"]
    assert text("first") != text(service.name)
    service.patch({"model": {"adapters": [adapter("second")]}})
    # The kubelet brings a changed ConfigMap within about a minute.
    service.eventually(lambda: models() == [service.name, "second"], "the other adapter is served", 180)
    assert text("second") != text(service.name)
    assert names_of(service.pods()) == before
