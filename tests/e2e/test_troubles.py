"""A service that cannot run says why: the conditions name the reason and what it is about."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.cluster.cluster import LocalCluster

from .fleet import RESOURCES, Fleet, InferenceService, Object, scripted

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]  # the first test builds images and installs, too


class Case(NamedTuple):
    """A spec that cannot run; the reasons `Ready` may give, and words of its message."""

    spec: Object
    reasons: tuple[str, ...]
    words: tuple[str, ...]
    model_loaded: str = "Unknown"


MODELS = "models"
CRASHING = ("EngineCrashing", "EngineFailed")
CASES = {
    "bad-image": Case(
        scripted(1, engine={"image": "octavo.dev/engine:never-built"}),
        ("ImagePullFailed",),
        ("octavo.dev/engine:never-built",),
    ),
    "no-gpu": Case(
        scripted(1, engine={"tensorParallelSize": 8}, resources={"limits": {"nvidia.com/gpu": "8", "memory": "512Mi"}}),
        ("InsufficientGPU",),
        ("Insufficient nvidia.com/gpu", "0/2 nodes"),
    ),
    "no-memory": Case(
        scripted(1, resources={"requests": {"memory": "9Ti"}}), ("Unschedulable",), ("Insufficient memory",)
    ),
    "no-model": Case(scripted(1, "bundled://no-such-model"), CRASHING, ("no-such-model",), "False"),
    "no-file": Case(scripted(1, "file:///models/absent.gguf"), CRASHING, ("/models/absent.gguf",), "False"),
    "no-gguf": Case(scripted(1, f"pvc://{MODELS}/broken.gguf"), CRASHING, ("broken.gguf",), "False"),
    "bad-option": Case(scripted(1, "scripted://?stepp=20ms"), CRASHING, ("stepp",), "False"),
    "bad-flag": Case(scripted(1, engine={"args": ["--no-such-flag"]}), CRASHING, ("--no-such-flag",), "False"),
    "root": Case(
        scripted(1, podTemplate={"containerSecurityContext": {"allowPrivilegeEscalation": True}}),
        ("PodsRefused",),
        ("restricted", "allowPrivilegeEscalation"),
    ),
    "no-secret": Case(
        scripted(1, podTemplate={"envFrom": [{"secretRef": {"name": "no-such-secret"}}]}),
        ("ContainerConfigInvalid",),
        ("no-such-secret",),
    ),
    "small": Case(
        scripted(1, resources={"requests": RESOURCES["requests"] | {"memory": "16Mi"}, "limits": {"memory": "24Mi"}}),
        ("OutOfMemory",),
        ("resources.limits.memory",),
        "False",
    ),
}


@pytest.fixture(scope="module")
def troubled(
    fleet: Fleet, local_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, InferenceService]]:
    """All of the cases at once: most of their time is the kubelet's patience."""
    namespace = local_cluster.namespace(f"test-{uuid.uuid4().hex[:8]}")
    folder = tmp_path_factory.mktemp(MODELS)
    (folder / "broken.gguf").write_bytes(b"GGUF" + bytes(range(256)))
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)  # the pods' user is not ours
    with fleet.volume(namespace, MODELS, folder):
        services = {name: fleet.service(namespace, name) for name in CASES}
        local_cluster.apply([services[name].manifest(case.spec) for name, case in CASES.items()])
        yield services
        local_cluster.kubectl("delete", "ois", "--all", "-n", namespace, timeout=180)
    local_cluster.delete_namespace(namespace, wait=False)


@pytest.mark.parametrize("name", CASES)
def test_the_condition_says_why(troubled: dict[str, InferenceService], name: str) -> None:
    service, case = troubled[name], CASES[name]

    def told() -> Object | None:
        ready = service.condition("Ready")
        fits = ready.get("reason") in case.reasons and all(word in ready["message"] for word in case.words)
        return ready if fits else None

    ready = service.eventually(told, f"Ready says one of {case.reasons} and {case.words}", 120)
    assert ready["status"] == "False"
    assert service.condition("WorkloadAvailable")["status"] == "False"
    assert service.condition("ModelLoaded")["status"] == case.model_loaded
