"""`spec` of an InferenceService: what a user writes. These types are the one source of the CRD's schema.

A field is here only when its feature is: what comes later (routing, auth, object stores, downloads, …) is pruned or
refused by the API server instead of being accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final, TypeVar

from pydantic import Field, StringConstraints

from octavo_engine import contract
from octavo_operator.api.fields import KubernetesObject, LabelValue, LongText, Part, Quantity, Text, rule, rules

_Part = TypeVar("_Part", bound=Part)

MAX_REPLICAS: Final = 1000
GPU_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu")
_DNS_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_RESERVED_ARGS: Final = ("--host", "--port", "--served-model-name", "--drain-timeout", "--shutdown-timeout")


class DType(StrEnum):
    """Arithmetic of the engine."""

    AUTO = "Auto"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"
    FLOAT32 = "Float32"


class Quantization(StrEnum):
    """Weight quantisation; Auto keeps what the file stores."""

    AUTO = "Auto"
    NONE = "None"


class Switch(StrEnum):
    """On or off, spelled so that a later third state fits."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Mode(StrEnum):
    """Who decides the number of replicas."""

    BUILTIN = "Builtin"
    EXTERNAL = "External"


class ClaimReference(Part):
    """A PersistentVolumeClaim in the resource's namespace."""

    claim_name: Text = Field(description="Name of a PersistentVolumeClaim in this namespace.")


class HostPath(Part):
    """A folder on the node."""

    path: LongText = Field(description="Absolute path on the node. Not allowed by the restricted Pod Security level.")


class EmptyDir(Part):
    """A folder that lives as long as the pod."""

    model_config = rules(
        rule(
            "!has(self.sizeLimit) || isQuantity(string(self.sizeLimit))"
            " && !quantity(string(self.sizeLimit)).isLessThan(quantity('0'))",
            "emptyDir.sizeLimit must be a Kubernetes quantity that is not negative, for example 20Gi",
        )
    )
    size_limit: Quantity | None = Field(None, description="Largest size, for example 20Gi.")


class ModelCache(Part):
    """Where the engine keeps what it derives from a model. Exactly one kind."""

    model_config = rules(
        rule(
            "[has(self.persistentVolumeClaim), has(self.hostPath), has(self.emptyDir)].filter(x, x).size() == 1",
            "set exactly one of model.cache.persistentVolumeClaim, model.cache.hostPath and model.cache.emptyDir",
        )
    )
    persistent_volume_claim: ClaimReference | None = Field(None, description="A claim, shared by the replicas.")
    host_path: HostPath | None = Field(None, description="A folder on the node, shared by the pods there.")
    empty_dir: EmptyDir | None = Field(None, description="A folder of the pod's own, gone with it.")


class Adapter(Part):
    """A LoRA adapter of the model, as PEFT saves it."""

    model_config = rules(
        rule(
            "self.uri.matches('^(file:///|pvc://" + f"{_DNS_LABEL}([.]{_DNS_LABEL})*(/|$)" + ").*$')"
            " && (self.uri.startsWith('file://') || self.uri.matches('^pvc://[^/]{1,253}(/|$)'))",
            "model.adapters[].uri must be file:///PATH/IN/THE/POD, pvc://CLAIM or pvc://CLAIM/PATH",
        ),
        rule(
            r"!self.uri.matches('\\p{Cc}') && !self.name.matches('\\p{Cc}')",
            "model.adapters[] must not contain control characters, such as a newline",
        ),
        rule(
            "!self.uri.matches('(^|/|%2[fF])([.]|%2[eE]){2}(/|%2[fF]|$)')",
            "model.adapters[].uri must not contain '..', not even percent-encoded:"
            " give the path from the root of the volume",
        ),
    )
    name: Annotated[str, StringConstraints(min_length=1, max_length=128)] = Field(
        description='The "model" of OpenAI requests that want it.'
    )
    uri: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="Its folder: file:///PATH or pvc://CLAIM/PATH."
    )


class Model(Part):
    """What to serve."""

    model_config = rules(
        rule(
            "self.uri.matches('^((bundled|file|pvc)://.+|scripted://.*)')",
            "model.uri must be bundled://NAME, file:///PATH/IN/THE/POD, pvc://CLAIM/PATH or scripted://OPTIONS",
        ),
        rule(
            r"!self.uri.matches('\\p{Cc}')",
            "model.uri must not contain control characters, such as a newline",
        ),
        rule(
            "!self.uri.matches('(^|/|%2[fF])([.]|%2[eE]){2}(/|%2[fF]|$)')",
            "model.uri must not contain '..', not even percent-encoded: give the path from the root of the volume",
        ),
        rule(
            "!self.uri.startsWith('file://') || self.uri.startsWith('file:///')",
            "model.uri file:// needs an absolute path: file:///PATH/IN/THE/POD",
        ),
        rule(
            f"!self.uri.startsWith('pvc://') || self.uri.matches('^pvc://{_DNS_LABEL}([.]{_DNS_LABEL})*(/.*)?$')"
            " && self.uri.matches('^pvc://[^/]{1,253}(/|$)')",
            "model.uri pvc:// needs the name of a PersistentVolumeClaim, lower-case letters, digits, '-' and '.',"
            " at most 253: pvc://CLAIM or pvc://CLAIM/PATH",
        ),
        rule(
            "!has(self.adapters) || self.adapters.all(a, self.adapters.filter(b, b.name == a.name).size() == 1"
            " && (!has(self.servedName) || a.name != self.servedName))",
            "model.adapters[].name must be unique, and not the model's own servedName",
        ),
    )
    uri: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="bundled://NAME (travels in the engine image), file:///PATH, pvc://CLAIM/PATH or scripted://OPTIONS."
    )
    served_name: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = Field(
        None, description='The "model" of OpenAI requests. Default: metadata.name.'
    )
    adapters: Annotated[list[Adapter], Field(max_length=contract.MAX_ADAPTERS)] | None = Field(
        None,
        description="LoRA adapters, each a model of its own to clients. Changing the list changes running pods, within"
        " about a minute; only the first adapter, and the first of another claim, need new pods.",
    )
    cache: ModelCache | None = Field(
        None, description="Where the engine keeps what it derives from a model. Default: a folder of the pod's own."
    )


class KVCache(Part):
    """The paged KV cache."""

    model_config = rules(
        rule(
            "!has(self.memory) || self.memory.matches('^[1-9][0-9]{0,14}(k|M|G|Ki|Mi|Gi)?$')",
            "engine.kvCache.memory must be a whole number of bytes, plain or in k, M, G, Ki, Mi or Gi,"
            " for example 4Gi, 512Mi, 4G",
        )
    )
    block_size: Annotated[int, Field(json_schema_extra={"enum": [contract.BLOCK_SIZE]})] = Field(
        contract.BLOCK_SIZE, description="Tokens per block."
    )
    memory: Annotated[str, StringConstraints(max_length=18)] | None = Field(
        None, description="Bytes of KV cache per pod, for example 4Gi. Default: the engine measures."
    )


class Engine(Part):
    """How the engine runs."""

    model_config = rules(
        rule(
            "!has(self.args) || self.args.all(a, !a.matches('^(" + "|".join(_RESERVED_ARGS) + ")(=.*)?$'))",
            "engine.args must not set " + ", ".join(_RESERVED_ARGS) + ": the operator sets them from the spec",
        ),
    )
    image: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        None, description="Engine image. Default: the one the operator was installed with."
    )
    dtype: DType = Field(DType.AUTO, description="Arithmetic. Float32 is the exact mode.")
    quantization: Quantization = Field(Quantization.AUTO, description="Weight quantisation. Auto: as stored.")
    max_model_len: Annotated[int, Field(ge=16, le=10_000_000)] | None = Field(
        None, description="Longest prompt plus answer, in tokens. Default: the model's own."
    )
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="Most sequences in one batch.")
    max_num_batched_tokens: Annotated[int, Field(ge=16, le=1_048_576)] | None = Field(
        None, description="Most tokens computed in one step. Default: the engine's own."
    )
    kv_cache: KVCache | None = Field(None, description="The paged KV cache.")
    prefix_sharing: Switch = Field(Switch.ENABLED, description="Share the blocks of equal prefixes.")
    tensor_parallel_size: Annotated[int, Field(ge=1, le=8)] = Field(
        1, description="GPUs that share one model; equals the pod's GPU limit when it has GPUs."
    )
    args: Annotated[list[LongText], Field(max_length=64)] | None = Field(
        None, description="More flags for `octavo serve`, taken literally."
    )


_QUANTITIES = (
    "self.{0}.all(k, isQuantity(string(self.{0}[k])) && !quantity(string(self.{0}[k])).isLessThan(quantity('0')))"
)


class Resources(Part):
    """Compute of each engine pod."""

    model_config = rules(
        rule(
            f"(!has(self.limits) || {_QUANTITIES.format('limits')})"
            f" && (!has(self.requests) || {_QUANTITIES.format('requests')})",
            "resources must be Kubernetes quantities that are not negative, for example cpu: 500m, memory: 8Gi",
        ),
        rule(
            f"!has(self.limits) || {list(GPU_RESOURCES)}.all(g, !(g in self.limits)"
            " || string(self.limits[g]).matches('^[0-9]{1,3}$'))",
            "GPUs in resources.limits must be a whole number, for example nvidia.com/gpu: 1",
        ),
        rule(
            "!has(self.limits) || !has(self.requests) || self.requests.all(k, !(k in self.limits)"
            " || !isQuantity(string(self.requests[k])) || !isQuantity(string(self.limits[k]))"
            " || quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",
            "resources.requests must not exceed resources.limits",
        ),
    )
    limits: Annotated[dict[str, Quantity], Field(max_length=16)] | None = Field(None, description="Upper bounds.")
    requests: Annotated[dict[str, Quantity], Field(max_length=16)] | None = Field(
        None, description="What the scheduler reserves."
    )


class ScaleUp(Part):
    """How fast replicas are added."""

    max_percent: Annotated[int, Field(ge=1, le=1000)] = Field(
        100, description="Most replicas added per period, in percent of the present number."
    )
    max_pods: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(4, description="Most replicas added per period.")
    period_seconds: Annotated[int, Field(ge=1, le=3600)] = Field(30, description="Length of the period.")


class ScaleDown(Part):
    """When and how fast replicas are removed."""

    utilization_percent: Annotated[int, Field(ge=1, le=99)] = Field(
        60, description="Shrink only when the rest would stay under this KV utilisation."
    )
    stabilization_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        180, description="The whole window must agree before anything shrinks."
    )
    max_pods: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(1, description="Most replicas removed per period.")
    period_seconds: Annotated[int, Field(ge=1, le=3600)] = Field(60, description="Length of the period.")


class Autoscaling(Part):
    """Who changes the number of replicas, and when."""

    model_config = rules(
        rule(
            "!has(self.maxReplicas) || (has(self.minReplicas) ? self.minReplicas : 1) <= self.maxReplicas",
            "autoscaling.minReplicas must not exceed autoscaling.maxReplicas",
        ),
        rule(
            "self.mode != 'Builtin' || has(self.maxReplicas)",
            "autoscaling.maxReplicas is required with mode Builtin: it bounds what the service may cost",
        ),
        rule(
            "(has(self.scaleDown) && has(self.scaleDown.utilizationPercent) ? self.scaleDown.utilizationPercent : 60)"
            " < (has(self.targetKVUtilizationPercent) ? self.targetKVUtilizationPercent : 80)",
            "autoscaling.scaleDown.utilizationPercent must be below autoscaling.targetKVUtilizationPercent, or the"
            " service would grow and shrink for ever",
        ),
    )
    mode: Mode = Field(Mode.BUILTIN, description="Builtin, or External: an HPA or KEDA writes replicas by /scale.")
    dry_run: bool = Field(False, description="Record decisions in status, change nothing.")
    min_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(1, description="Fewest replicas.")
    max_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = Field(None, description="Most replicas.")
    target_kv_utilization_percent: Annotated[int, Field(ge=2, le=100)] = Field(
        80, alias="targetKVUtilizationPercent", description="Share of KV blocks held by sequences to aim at."
    )
    target_queue_depth: Annotated[int, Field(ge=1, le=100_000)] = Field(
        4, description="Waiting requests per replica to aim at."
    )
    scale_up: ScaleUp | None = Field(None, description="How fast replicas are added.")
    scale_down: ScaleDown | None = Field(None, description="When and how fast replicas are removed.")


class Rollout(Part):
    """How a changed pod template replaces the old pods."""

    model_config = rules(
        rule(
            "!(has(self.maxSurge) && has(self.maxUnavailable) && self.maxSurge == 0 && self.maxUnavailable == 0)",
            "rollout.maxSurge and rollout.maxUnavailable must not both be 0: no pod could ever be replaced",
        )
    )
    max_surge: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] | None = Field(
        None, description="Pods above the wanted number. Default: 0 with GPUs, 1 without."
    )
    max_unavailable: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] | None = Field(
        None, description="Pods below the wanted number. Default: 1 with GPUs, 0 without."
    )
    drain_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        contract.DEFAULT_DRAIN_TIMEOUT_SECONDS, description="How long running streams may take to end."
    )
    startup_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = Field(
        1800, description="How long a pod may take to load its model."
    )


Objects = Annotated[list[KubernetesObject], Field(max_length=32)]


class PodTemplate(Part):
    """What else the engine pods get: a closed list. Deep parts are checked by a dry run before anything changes."""

    labels: Annotated[dict[str, LabelValue], Field(max_length=64)] | None = Field(None, description="Pod labels.")
    annotations: Annotated[dict[str, LongText], Field(max_length=64)] | None = Field(
        None, description="Pod annotations."
    )
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=32)] | None = Field(
        None, description="Node labels the pods need."
    )
    affinity: KubernetesObject | None = Field(None, description="Affinity of the pods.")
    tolerations: Objects | None = Field(None, description="Taints the pods tolerate.")
    topology_spread_constraints: Objects | None = Field(None, description="How the pods spread.")
    priority_class_name: Text | None = Field(None, description="Priority class.")
    runtime_class_name: Text | None = Field(None, description="Runtime class.")
    scheduler_name: Text | None = Field(None, description="Scheduler.")
    image_pull_secrets: Objects | None = Field(None, description="Secrets for pulling images.")
    service_account_name: Text | None = Field(
        None, description="An existing service account. Default: one of the service's own, without a token."
    )
    security_context: KubernetesObject | None = Field(None, description="Merged over the pod's security context.")
    container_security_context: KubernetesObject | None = Field(
        None, description="Merged over the engine container's security context."
    )
    volumes: Objects | None = Field(None, description="More volumes.")
    volume_mounts: Objects | None = Field(None, description="More mounts of the engine container.")
    env: Annotated[list[KubernetesObject], Field(max_length=128)] | None = Field(
        None, description="More environment of the engine container; wins over the operator's."
    )
    env_from: Objects | None = Field(None, description="Environment from ConfigMaps and Secrets.")
    sidecars: Annotated[list[KubernetesObject], Field(max_length=8)] | None = Field(
        None, description="More containers."
    )


_GPUS = (
    f"(has(self.resources) && has(self.resources.limits) ? {list(GPU_RESOURCES)}.filter(g, g in self.resources.limits"
    " && string(self.resources.limits[g]).matches('^[0-9]{1,3}$')).map(g, int(string(self.resources.limits[g])))"
    " : []).sum()"
)
_TENSOR_PARALLEL = "(has(self.engine) && has(self.engine.tensorParallelSize) ? self.engine.tensorParallelSize : 1)"
_BUILTIN = "has(self.autoscaling) && self.autoscaling.mode == 'Builtin'"


def _defaults(of: type[_Part]) -> Callable[[], _Part]:
    """Return a factory of an object whose every field has its default."""
    return lambda: of.model_validate({})


class InferenceServiceSpec(Part):
    """The wanted state."""

    model_config = rules(
        rule(
            f"[1, {_GPUS}].max() == {_TENSOR_PARALLEL}",
            "the GPUs of resources.limits must equal engine.tensorParallelSize (1 without GPUs)",
        ),
        rule(
            "has(self.autoscaling) || has(self.replicas)",
            "replicas is required without autoscaling: set replicas to the number of pods you want, or add autoscaling",
        ),
        rule(
            f"!({_BUILTIN}) || !has(self.replicas) || (oldSelf.hasValue() && has(oldSelf.value().replicas)"
            " && oldSelf.value().replicas == self.replicas)",
            "replicas is not used with autoscaling.mode Builtin: edit autoscaling.minReplicas and"
            " autoscaling.maxReplicas instead, or set mode External",
            optionalOldSelf=True,
        ),
    )
    model: Model = Field(description="What to serve.")
    engine: Engine = Field(default_factory=_defaults(Engine), description="How the engine runs.")
    resources: Resources = Field(default_factory=_defaults(Resources), description="Compute of each engine pod.")
    suspend: bool = Field(False, description="No pods until it is false again; the number of replicas is kept.")
    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] | None = Field(
        None, description="Number of pods without autoscaling; with mode External the scaler writes it by /scale."
    )
    autoscaling: Autoscaling | None = Field(None, description="Who changes the number of replicas, and when.")
    rollout: Rollout = Field(default_factory=_defaults(Rollout), description="How changed pods replace old ones.")
    pod_template: PodTemplate = Field(default_factory=_defaults(PodTemplate), description="What else the pods get.")

    @property
    def gpus(self) -> int:
        """GPUs of one pod."""
        limits = self.resources.limits or {}
        return sum(int(limits[name]) for name in GPU_RESOURCES if limits.get(name, "").isdecimal())

    @property
    def builtin(self) -> bool:
        """Whether Octavo's own autoscaler decides."""
        return self.autoscaling is not None and self.autoscaling.mode is Mode.BUILTIN
