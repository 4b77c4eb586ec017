"""`status` of an InferenceService: what the operator observed and decided."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api.fields import LongText, Part, Text

Count = Annotated[int, Field(ge=0)]


class ConditionType(StrEnum):
    """Every condition the operator writes; one that does not apply is absent."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    WORKLOAD_AVAILABLE = "WorkloadAvailable"
    MODEL_LOADED = "ModelLoaded"
    METRICS_AVAILABLE = "MetricsAvailable"
    SCALING_ACTIVE = "ScalingActive"
    SCALING_LIMITED = "ScalingLimited"


class Condition(Part):
    """One condition, as `metav1.Condition`."""

    type: Annotated[str, Field(max_length=316)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, Field(max_length=1024)]
    message: Annotated[str, Field(max_length=32768)] = ""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    observed_generation: Count


class Address(Part):
    """Where the OpenAI API answers inside the cluster."""

    url: LongText


class KV(Part):
    """Load of all pods together; rounded, and written at most every 30 s."""

    utilization_percent: Count | None = None
    queue_depth: Count | None = None


class DecisionInputs(Part):
    """The numbers a decision was made from."""

    demand_blocks: Count = 0
    growth_blocks: Count = 0
    held_requests: Count = 0
    queued_requests: Count = 0
    oldest_queue_millis: Count = 0
    blocks_per_pod: Count = 0
    ready_pods: Count = 0
    starting_pods: Count = 0
    unschedulable_pods: Count = 0
    reporting_pods: Count = 0


class DecisionRecord(Part):
    """One decision of the autoscaler."""

    time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    from_: Count = Field(alias="from")
    to: Count
    direction: Literal["Up", "Down", "Hold"]
    branch: Literal["Demand", "Latency", "Idle", "Wake", "Bounds", "MissingMetrics", "Restart"]
    reason: Text
    message: Annotated[str, Field(max_length=2048)]
    limited_by: Literal["None", "Min", "Max", "Step", "Window", "Capacity", "PartialData", "DryRun"]
    inputs: DecisionInputs


class Learned(Part):
    """What the autoscaler measured of this service."""

    blocks_per_pod: Count | None = None
    cold_start_p50_seconds: Count | None = Field(None, alias="coldStartP50Seconds")
    cold_start_p90_seconds: Count | None = Field(None, alias="coldStartP90Seconds")


class Scaling(Part):
    """The autoscaler's state."""

    desired_replicas: Count | None = None
    last_decision: DecisionRecord | None = None
    history: Annotated[list[DecisionRecord], Field(max_length=5)] | None = None
    learned: Learned | None = None


class InferenceServiceStatus(Part):
    """The observed state."""

    observed_generation: Count | None = Field(None, description="The generation this status describes.")
    conditions: (
        Annotated[
            list[Condition],
            Field(
                max_length=16,
                json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
            ),
        ]
        | None
    ) = Field(None, description="Why the service is, or is not, as wanted.")
    url: LongText | None = Field(None, description="Where clients reach the service.")
    address: Address | None = Field(None, description="The Service's address inside the cluster.")
    replicas: Count | None = Field(None, description="Present number of pods.")
    ready_replicas: Count | None = Field(None, description="Pods that answer.")
    updated_replicas: Count | None = Field(None, description="Pods of the present pod template.")
    selector: LongText | None = Field(None, description="Label selector of this revision's pods, for /scale.")
    kv: KV | None = Field(None, description="Load of all pods together.")
    scaling: Scaling | None = Field(None, description="The autoscaler's decisions.")
