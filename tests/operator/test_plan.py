"""`plan(spec, observed)`: tables from a spec to the children. No cluster."""

import json
from typing import Any

import pytest

from octavo_engine import contract
from octavo_operator import names
from octavo_operator.api import InferenceServiceSpec
from octavo_operator.plan import (
    Children,
    EngineDefaults,
    Observed,
    Owner,
    kept_defaults,
    plan,
    rendered_hash,
    selector_text,
)
from octavo_operator.plan.settings import ANNOTATION_DEFAULTS

OWNER = Owner("assistant", "team-a", "00000000-0000-0000-0000-000000000001")
DEFAULTS = EngineDefaults("octavo.dev/engine:1")
LEAST: dict[str, Any] = {"model": {"uri": "bundled://smollm2-135m-instruct"}, "replicas": 1}
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
TWO_GPUS = {"resources": {"limits": {"nvidia.com/gpu": 2}}, "engine": {"tensorParallelSize": 2}}


def planned(defaults: EngineDefaults = DEFAULTS, owner: Owner = OWNER, **spec: Any) -> Children:
    return plan(owner, InferenceServiceSpec.model_validate({**LEAST, **spec}), defaults, Observed())


def pod(**spec: Any) -> dict[str, Any]:
    return dict(planned(**spec).deployment["spec"]["template"]["spec"])


def engine(**spec: Any) -> dict[str, Any]:
    return dict(pod(**spec)["containers"][0])


def flags(**spec: Any) -> list[str]:
    return list(engine(**spec)["args"])


def value(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_the_children_and_their_owner() -> None:
    children = planned().all()
    assert [each["kind"] for each in children] == [
        "ServiceAccount", "Service", "PodDisruptionBudget", "ConfigMap", "Deployment",
    ]  # fmt: skip
    for child in children:
        [owner] = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (OWNER.uid, True, True)
        assert child["metadata"]["namespace"] == "team-a"
        assert child["metadata"]["labels"][contract.LABEL_SERVICE] == names.derived("assistant")


def test_the_selector_is_minimal_and_users_labels_never_reach_it() -> None:
    deployment = planned(podTemplate={"labels": {contract.LABEL_SERVICE: "mine", "team": "a"}}).deployment
    assert deployment["spec"]["selector"]["matchLabels"] == names.selector("assistant")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "a"
    assert names.selector("assistant").items() <= labels.items()


def test_only_what_the_spec_sets_becomes_a_flag() -> None:
    assert engine()["command"] == ["octavo", "serve", "bundled://smollm2-135m-instruct"]
    assert flags() == [
        "--host", "0.0.0.0", "--port", "8000", "--served-model-name", "assistant", "--drain-timeout", "300",
        "--dtype", "auto", "--quantization", "auto",
    ]  # fmt: skip


ADAPTED = {
    "uri": "scripted://",
    "adapters": [
        {"name": "sql", "uri": "pvc://loras/sql%20v2"},
        {"name": "law", "uri": "pvc://loras"},
        {"name": "own", "uri": "file:///baked/in"},
    ],
}


def test_adapters_are_a_config_map_that_pods_follow() -> None:
    children = planned(model=ADAPTED)
    [_, config] = [each for each in children.supporting if each["kind"] == "ConfigMap"]
    assert config["metadata"]["name"] == f"{names.derived('assistant')}-adapters"
    at = f"/var/lib/octavo/adapters/{names.short_hash('loras')}"
    assert json.loads(config["data"]["adapters.json"]) == {"sql": f"{at}/sql v2", "law": at, "own": "/baked/in"}
    assert value(flags(model=ADAPTED), "--lora-modules-file") == "/etc/octavo/adapters/adapters.json"
    mounts = {each["mountPath"]: each for each in engine(model=ADAPTED)["volumeMounts"]}
    assert mounts["/etc/octavo/adapters"]["readOnly"]
    assert mounts[at]["readOnly"]
    entries = {each["name"]: each for each in pod(model=ADAPTED)["volumes"]}
    assert entries[mounts[at]["name"]]["persistentVolumeClaim"] == {"claimName": "loras", "readOnly": True}
    assert entries["octavo-adapters"]["configMap"] == {"name": config["metadata"]["name"]}


def test_only_the_first_adapter_and_another_claim_need_new_pods() -> None:
    def revision(*adapters: dict[str, str]) -> str:
        deployment = planned(model={"uri": "scripted://", "adapters": list(adapters)}).deployment
        return str(deployment["spec"]["template"]["metadata"]["labels"][names.LABEL_REVISION])

    sql, law = {"name": "sql", "uri": "pvc://loras/sql"}, {"name": "law", "uri": "pvc://loras/law"}
    assert revision(sql) == revision(law) == revision(sql, law)
    assert revision() == revision({"name": "own", "uri": "file:///baked/in"})
    assert revision(sql) != revision(sql, {"name": "other", "uri": "pvc://more/x"})


def test_every_engine_field_becomes_its_flag() -> None:
    arguments = flags(
        model={"uri": "scripted://", "servedName": "chat"},
        engine={
            "dtype": "Float32",
            "quantization": "None",
            "maxModelLen": 512,
            "maxNumSeqs": 8,
            "maxNumBatchedTokens": 64,
            "kvCache": {"blockSize": 16, "memory": "64Mi"},
            "prefixSharing": "Disabled",
            "args": ["--max-queue-requests=9", "$(HOME)"],
        },
        rollout={"drainTimeoutSeconds": 7},
    )
    expected = {
        "--served-model-name": "chat", "--dtype": "float32", "--quantization": "none", "--max-model-len": "512",
        "--max-num-seqs": "8", "--max-num-batched-tokens": "64", "--block-size": "16", "--kv-cache-memory": "64Mi",
        "--drain-timeout": "7",
    }  # fmt: skip
    assert {flag: value(arguments, flag) for flag in expected} == expected
    assert arguments[-3:] == ["--no-prefix-sharing", "--max-queue-requests=9", "$$(HOME)"]
    assert value(flags(**TWO_GPUS), "--tensor-parallel-size") == "2"


@pytest.mark.parametrize(
    ("spec", "surge", "unavailable"),
    [
        ({}, 1, 0),
        (GPU, 0, 1),
        ({"rollout": {"maxSurge": 2}}, 2, 0),
        ({"rollout": {"maxSurge": 0}}, 0, 1),
        ({"rollout": {"maxUnavailable": 2}}, 1, 2),
        ({**GPU, "rollout": {"maxSurge": 1}}, 1, 1),
        ({**GPU, "rollout": {"maxUnavailable": 0}}, 1, 0),
        ({**GPU, "rollout": {"maxSurge": 1, "maxUnavailable": 0}}, 1, 0),
    ],
)
def test_a_rollout_fits_full_gpus_and_never_stands_still(spec: dict[str, Any], surge: int, unavailable: int) -> None:
    strategy = planned(**spec).deployment["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": surge, "maxUnavailable": unavailable}


def test_a_slow_load_has_a_budget_and_an_open_port_is_not_ready() -> None:
    container = engine(rollout={"startupTimeoutSeconds": 600})
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 600
    assert startup["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert all("initialDelaySeconds" not in container[probe] for probe in ("startupProbe", "readinessProbe"))
    deployment = planned(rollout={"startupTimeoutSeconds": 600}).deployment
    assert deployment["spec"]["progressDeadlineSeconds"] == 660


def test_an_engine_that_is_started_again_is_waited_for() -> None:
    liveness = engine(rollout={"startupTimeoutSeconds": 600})["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= contract.HANG_SECONDS + 600


def test_the_kubelet_waits_longer_than_the_drain() -> None:
    template = pod(rollout={"drainTimeoutSeconds": 900})
    grace = template["terminationGracePeriodSeconds"]
    assert grace > 900 + contract.DRAIN_PROPAGATION_SECONDS
    command = template["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["octavo", "drain", "--wait", f"--timeout={grace}"]


def test_pods_pass_the_restricted_level_and_carry_no_token() -> None:
    template = pod()
    assert template["automountServiceAccountToken"] is False
    assert template["enableServiceLinks"] is False
    assert template["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert template["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    writable = {mount["mountPath"] for mount in template["containers"][0]["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/tmp", "/var/cache/octavo"}


@pytest.mark.parametrize(("spec", "size"), [({}, None), (GPU, None), (TWO_GPUS, "2Gi")])
def test_shared_memory_comes_with_the_second_gpu(spec: dict[str, Any], size: str | None) -> None:
    found = [each["emptyDir"] for each in pod(**spec)["volumes"] if each["name"] == "octavo-shm"]
    assert found == ([] if size is None else [{"medium": "Memory", "sizeLimit": size}])
    mounts = {each["name"]: each["mountPath"] for each in engine(**spec)["volumeMounts"]}
    assert mounts.get("octavo-shm") == (None if size is None else "/dev/shm")


@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_get_a_gpu_each_in_one_pod(size: int) -> None:
    spec = {"resources": {"limits": {"nvidia.com/gpu": size}}, "engine": {"tensorParallelSize": size}}
    assert engine(**spec)["resources"]["limits"] == {"nvidia.com/gpu": str(size)}
    assert value(flags(**spec), "--tensor-parallel-size") == str(size)
    assert planned(**spec).deployment["spec"]["template"]["spec"]["containers"][1:] == []


def test_a_claim_is_mounted_read_only_and_served_from_there() -> None:
    container = engine(model={"uri": "pvc://weights/smol lm/model.gguf"})
    assert container["command"][-1] == "file:///var/lib/octavo/model/smol%20lm/model.gguf"
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "octavo-model"]
    assert mount == {"name": "octavo-model", "mountPath": "/var/lib/octavo/model", "readOnly": True}
    assert engine(model={"uri": "pvc://weights"})["command"][-1] == "file:///var/lib/octavo/model"


@pytest.mark.parametrize(
    ("cache", "source"),
    [
        (None, {"emptyDir": {}}),
        ({"emptyDir": {"sizeLimit": "1Gi"}}, {"emptyDir": {"sizeLimit": "1Gi"}}),
        ({"persistentVolumeClaim": {"claimName": "c"}}, {"persistentVolumeClaim": {"claimName": "c"}}),
        ({"hostPath": {"path": "/models"}}, {"hostPath": {"path": "/models", "type": "DirectoryOrCreate"}}),
    ],
)
def test_each_cache_kind(cache: dict[str, Any] | None, source: dict[str, Any]) -> None:
    model = {"uri": "scripted://", **({"cache": cache} if cache else {})}
    [found] = [each for each in pod(model=model)["volumes"] if each["name"] == "octavo-cache"]
    assert found == {"name": "octavo-cache", **source}


def test_the_pod_template_adds_and_a_users_variable_wins() -> None:
    template = pod(
        podTemplate={
            "env": [{"name": "OCTAVO_CACHE", "value": "/mine"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "sidecars": [{"name": "s", "image": "i"}],
            "serviceAccountName": "theirs",
            "securityContext": {"fsGroup": 1},
            "containerSecurityContext": {"runAsUser": 7},
            "nodeSelector": {"disk": "ssd"},
            "priorityClassName": "high",
        }
    )
    container = template["containers"][0]
    assert [each["value"] for each in container["env"] if each["name"] == "OCTAVO_CACHE"] == ["/mine"]
    assert {"name": "v", "mountPath": "/v"} in container["volumeMounts"]
    assert template["containers"][1] == {"name": "s", "image": "i"}
    assert template["serviceAccountName"] == "theirs"
    assert template["securityContext"]["fsGroup"] == 1
    assert template["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["runAsUser"] == 7
    assert (template["nodeSelector"], template["priorityClassName"]) == ({"disk": "ssd"}, "high")
    kinds = [each["kind"] for each in planned(podTemplate={"serviceAccountName": "theirs"}).all()]
    assert "ServiceAccount" not in kinds


def test_an_image_of_ones_own_replaces_the_default() -> None:
    assert engine()["image"] == "octavo.dev/engine:1"
    assert engine(engine={"image": ""})["image"] == "octavo.dev/engine:1"
    assert engine(engine={"image": "mine:2"})["image"] == "mine:2"


def test_applications_find_the_service_in_a_config_map() -> None:
    [config] = [each for each in planned().all() if each["kind"] == "ConfigMap"]
    assert config["data"] == {
        "OPENAI_BASE_URL": "http://assistant.team-a.svc:8000/v1",
        "OPENAI_MODEL": "assistant",
    }


@pytest.mark.parametrize(
    ("defaults", "spec", "changes"),
    [
        (EngineDefaults("octavo.dev/engine:2"), {}, True),
        (EngineDefaults("octavo.dev/engine:1", image_pull_policy="Always"), {}, True),
        (EngineDefaults("octavo.dev/engine:2"), {"engine": {"image": "mine:1"}}, False),
        (EngineDefaults("octavo.dev/engine:2", image_pull_policy="Never"), {"engine": {"image": "mine:1"}}, True),
    ],
)
def test_a_service_that_waits_for_its_turn_keeps_every_default(
    defaults: EngineDefaults, spec: dict[str, Any], changes: bool
) -> None:
    live = planned(**spec).deployment
    kept = kept_defaults(live, InferenceServiceSpec.model_validate({**LEAST, **spec}), defaults)
    assert kept is not None
    assert (kept != defaults) is changes
    assert planned(kept, **spec).deployment["spec"] == live["spec"]
    assert (planned(defaults, **spec).deployment["spec"] != live["spec"]) is changes


def test_a_deployment_that_does_not_say_its_defaults_waits_for_nobody() -> None:
    spec = InferenceServiceSpec.model_validate(LEAST)
    for annotations in ({}, {ANNOTATION_DEFAULTS: "7"}, {ANNOTATION_DEFAULTS: '{"color": "red"}'}):
        assert kept_defaults({"metadata": {"annotations": annotations}}, spec, DEFAULTS) is None


def test_the_hash_follows_the_rendering_and_not_the_replicas() -> None:
    one, two = planned(replicas=1), planned(replicas=2)
    stamp = contract.ANNOTATION_RENDERED_HASH
    assert one.deployment["metadata"]["annotations"][stamp] == two.deployment["metadata"]["annotations"][stamp]
    other = planned(engine={"maxNumSeqs": 3})
    assert one.deployment["metadata"]["annotations"][stamp] != other.deployment["metadata"]["annotations"][stamp]
    assert rendered_hash(json.loads(json.dumps(other.supporting[1]))) == rendered_hash(other.supporting[1])


def test_the_scale_selector_matches_this_revisions_pods_only() -> None:
    one, other = planned(), planned(engine={"maxNumSeqs": 3})
    assert selector_text("assistant", one.deployment) != selector_text("assistant", other.deployment)
    labels = one.deployment["spec"]["template"]["metadata"]["labels"]
    wanted = dict(each.split("=") for each in selector_text("assistant", one.deployment).split(","))
    assert wanted.items() <= labels.items()
