"""The autoscaling part of an InferenceService's spec as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_engine import contract


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """At most the larger of `max_percent` and `max_pods` more within `period_seconds`."""

    max_percent: int = 100
    max_pods: int = 4
    period_seconds: int = 30


@dataclass(frozen=True, slots=True)
class ScaleDown:
    """At most `max_pods` fewer within `period_seconds`, below `utilization_percent` for the whole window."""

    utilization_percent: int = 60
    stabilization_seconds: int = 180
    max_pods: int = 1
    period_seconds: int = 60


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds and thresholds. Percentages are of KV blocks; `block_size` is in tokens."""

    min_replicas: int = 1
    max_replicas: int = 1
    target_utilization_percent: int = 80
    target_queue_depth: int = 4
    scale_up: ScaleUp = ScaleUp()
    scale_down: ScaleDown = ScaleDown()
    idle_seconds: int = 300
    dry_run: bool = False
    block_size: int = contract.BLOCK_SIZE
    startup_timeout_seconds: int = 1800


def policy_from_spec(spec: Mapping[str, Any]) -> Policy:
    """Return the policy of an InferenceService's `spec` (the whole of it); what is absent takes its default.

    Raises `ValueError` if the bounds contradict each other (the CRD's own rules refuse that first).
    """
    scaling: Mapping[str, Any] = spec.get("autoscaling") or {}
    up: Mapping[str, Any] = scaling.get("scaleUp") or {}
    down: Mapping[str, Any] = scaling.get("scaleDown") or {}
    kv_cache: Mapping[str, Any] = (spec.get("engine") or {}).get("kvCache") or {}
    rollout: Mapping[str, Any] = spec.get("rollout") or {}
    default = Policy()
    minimum = int(scaling.get("minReplicas", default.min_replicas))
    policy = Policy(
        min_replicas=minimum,
        max_replicas=int(scaling.get("maxReplicas", max(minimum, 1))),
        target_utilization_percent=int(scaling.get("targetKVUtilizationPercent", default.target_utilization_percent)),
        target_queue_depth=int(scaling.get("targetQueueDepth", default.target_queue_depth)),
        scale_up=ScaleUp(
            max_percent=int(up.get("maxPercent", default.scale_up.max_percent)),
            max_pods=int(up.get("maxPods", default.scale_up.max_pods)),
            period_seconds=int(up.get("periodSeconds", default.scale_up.period_seconds)),
        ),
        scale_down=ScaleDown(
            utilization_percent=int(down.get("utilizationPercent", default.scale_down.utilization_percent)),
            stabilization_seconds=int(down.get("stabilizationSeconds", default.scale_down.stabilization_seconds)),
            max_pods=int(down.get("maxPods", default.scale_down.max_pods)),
            period_seconds=int(down.get("periodSeconds", default.scale_down.period_seconds)),
        ),
        idle_seconds=int(scaling.get("idleSeconds", default.idle_seconds)),
        dry_run=bool(scaling.get("dryRun", default.dry_run)),
        block_size=int(kv_cache.get("blockSize", default.block_size)),
        startup_timeout_seconds=int(rollout.get("startupTimeoutSeconds", default.startup_timeout_seconds)),
    )
    if policy.min_replicas > policy.max_replicas:
        raise ValueError(
            f"autoscaling.minReplicas ({policy.min_replicas}) is above maxReplicas ({policy.max_replicas}): "
            "raise maxReplicas"
        )
    if policy.scale_down.utilization_percent >= policy.target_utilization_percent:
        raise ValueError(
            f"autoscaling.scaleDown.utilizationPercent ({policy.scale_down.utilization_percent}) must be below "
            f"targetKVUtilizationPercent ({policy.target_utilization_percent}), or the service would flap"
        )
    return policy
