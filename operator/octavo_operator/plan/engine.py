"""The engine container: command line, environment, probes, security."""

from __future__ import annotations

import math
from typing import Any, Final

from octavo_engine import contract
from octavo_operator.api.spec import InferenceServiceSpec, Switch
from octavo_operator.names import ENGINE_CONTAINER
from octavo_operator.plan.settings import EngineDefaults
from octavo_operator.plan.volumes import ADAPTERS_CONFIG, ADAPTERS_FILE, CACHE, Volume, model_argument

STARTUP_PERIOD_SECONDS: Final = 2
READINESS_PERIOD_SECONDS: Final = 5
LIVENESS_PERIOD_SECONDS: Final = 10


def engine_container(
    name: str, spec: InferenceServiceSpec, defaults: EngineDefaults, volumes: list[Volume]
) -> dict[str, Any]:
    """Return the engine container of the service `name`."""
    template = spec.pod_template
    container: dict[str, Any] = {
        "name": ENGINE_CONTAINER,
        "image": spec.engine.image or defaults.image,
        "imagePullPolicy": defaults.image_pull_policy,
        "command": ["octavo", "serve", _literal(model_argument(spec.model))],
        "args": [_literal(each) for each in arguments(name, spec)],
        "env": _environment(spec),
        "ports": [{"name": "http", "containerPort": contract.PORT_HTTP, "protocol": "TCP"}],
        "volumeMounts": [each.mount() for each in volumes] + list(template.volume_mounts or []),
        "securityContext": _merged(
            {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
            template.container_security_context,
        ),
        # The last lines of the log say why an engine failed; the operator shows them in the conditions.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "lifecycle": {"preStop": {"exec": {"command": ["octavo", "drain", "--wait", f"--timeout={_drain(spec)}"]}}},
        **_probes(spec),
    }
    if template.env_from:
        container["envFrom"] = list(template.env_from)
    if resources := _resources(spec):
        container["resources"] = resources
    return container


def arguments(name: str, spec: InferenceServiceSpec) -> list[str]:
    """Return the flags of `octavo serve`: those the spec sets, the others are the engine's own defaults."""
    engine, cache = spec.engine, spec.engine.kv_cache
    flags: list[tuple[str, object]] = [
        ("--host", "0.0.0.0"),
        ("--port", contract.PORT_HTTP),
        ("--served-model-name", spec.model.served_name or name),
        ("--drain-timeout", spec.rollout.drain_timeout_seconds),
        ("--dtype", engine.dtype.lower()),
        ("--quantization", engine.quantization.lower()),
        ("--max-model-len", engine.max_model_len),
        ("--max-num-seqs", engine.max_num_seqs),
        ("--max-num-batched-tokens", engine.max_num_batched_tokens),
        ("--block-size", cache.block_size if cache else None),
        ("--kv-cache-memory", cache.memory if cache else None),
        ("--tensor-parallel-size", engine.tensor_parallel_size if engine.tensor_parallel_size > 1 else None),
    ]
    result = [text for flag, value in flags if value is not None for text in (flag, str(value))]
    if spec.model.adapters is not None:
        result += ["--lora-modules-file", f"{ADAPTERS_CONFIG}/{ADAPTERS_FILE}"]
    if engine.prefix_sharing is Switch.DISABLED:
        result.append("--no-prefix-sharing")
    return result + list(engine.args or [])


def _drain(spec: InferenceServiceSpec) -> int:
    """Return the seconds after which `octavo drain` gives up: the pod's grace period, which the kubelet counts too."""
    return contract.termination_grace_seconds(spec.rollout.drain_timeout_seconds)


def _literal(argument: str) -> str:
    """Escape what the kubelet would expand: `$(NAME)` in an argument is text, not a variable."""
    return argument.replace("$(", "$$(")


def _environment(spec: InferenceServiceSpec) -> list[dict[str, Any]]:
    own = [{"name": contract.ENV_CACHE, "value": CACHE}, {"name": "HOME", "value": CACHE}]
    theirs = list(spec.pod_template.env or [])
    named = {each.get("name") for each in theirs}
    return [each for each in own if each["name"] not in named] + theirs


def _probes(spec: InferenceServiceSpec) -> dict[str, Any]:
    """Return the probes. An open port is not a loaded model: the startup probe waits for `/ready`, with a budget.

    An engine that dies is started again within its pod, which takes as long as the first start: the liveness probe
    waits for that, hang included. An API process that hangs ends by itself.
    """
    budget = spec.rollout.startup_timeout_seconds
    return {
        "startupProbe": {
            "httpGet": {"path": contract.PATH_READY, "port": "http"},
            "periodSeconds": STARTUP_PERIOD_SECONDS,
            "timeoutSeconds": 2,
            "failureThreshold": math.ceil(budget / STARTUP_PERIOD_SECONDS),
        },
        "readinessProbe": {
            "httpGet": {"path": contract.PATH_READY, "port": "http"},
            "periodSeconds": READINESS_PERIOD_SECONDS,
            "timeoutSeconds": 3,
            "failureThreshold": 2,
        },
        "livenessProbe": {
            "httpGet": {"path": contract.PATH_HEALTH, "port": "http"},
            "periodSeconds": LIVENESS_PERIOD_SECONDS,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil((contract.HANG_SECONDS + budget) / LIVENESS_PERIOD_SECONDS),
        },
    }


def _resources(spec: InferenceServiceSpec) -> dict[str, Any]:
    both = {"limits": spec.resources.limits, "requests": spec.resources.requests}
    return {name: dict(values) for name, values in both.items() if values}


def _merged(ours: dict[str, Any], theirs: dict[str, Any] | None) -> dict[str, Any]:
    return {**ours, **(theirs or {})}
