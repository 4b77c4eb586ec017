"""The example as the demo applies it: SmolLM2 answers from a pod that the operator made."""

from __future__ import annotations

import pytest
from examples.demo import chat, stage

from .fleet import InferenceService, is_ready

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]  # the first test builds images and installs, too


def test_the_example_s_service_answers_by_the_bundled_model(service: InferenceService) -> None:
    service.kubectl("apply", "-f", str(stage.MANIFEST))
    service.wait_ready(240)
    [pod] = service.pods()
    assert is_ready(pod)
    assert "bundled://smollm2-135m-instruct" in pod["spec"]["containers"][0]["command"]
    url = service.cluster.relay(f"{service.namespace}/{service.name}:8000") + "/v1"
    answer = chat.ask(url, service.name, stage.QUESTION)
    assert "Paris" in answer
    connection = service.cluster.get(
        "configmap", pod["metadata"]["labels"]["app.kubernetes.io/instance"], "-n", service.namespace
    )["data"]
    assert connection == {"OPENAI_BASE_URL": service.status()["address"]["url"], "OPENAI_MODEL": service.name}
