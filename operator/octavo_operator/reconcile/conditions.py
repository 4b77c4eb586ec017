"""The conditions of an InferenceService from what was seen and done in one pass. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from octavo_operator.api.status import ConditionType
from octavo_operator.plan.replicas import ReplicasMode
from octavo_operator.reconcile.diagnose import Diagnosis

Truth = Literal["True", "False", "Unknown"]

LIMITS: Final[dict[str, str]] = {
    "Min": "autoscaling.minReplicas sets the number of replicas",
    "Max": "autoscaling.maxReplicas sets the number of replicas",
    "Step": "the number of replicas changes in steps: autoscaling.scaleUp and autoscaling.scaleDown bound each period",
    "Window": "nothing shrinks before the whole window was seen and agrees: autoscaling.scaleDown.stabilizationSeconds",
    "Capacity": "a pod cannot be scheduled: more replicas would not help until the cluster has room",
    "PartialData": "not every ready pod reports its load: nothing is taken away on partial data",
}
"""What limits a decision, in a sentence without its numbers: those are its record's, and a condition outlives them."""


RESOURCE_CONFLICT: Final = "ResourceConflict"
"""The reason of a `Trouble`: an object of a child's name belongs to somebody else."""


class Finding(NamedTuple):
    """One condition before it gets its times."""

    type: ConditionType
    status: Truth
    reason: str
    message: str


class Trouble(NamedTuple):
    """Why the wanted state could not be written: a reason of `Ready=False` and a sentence."""

    reason: str
    message: str


class Workload(NamedTuple):
    """The Deployment in numbers.

    `settled`: its controller has seen the present generation. `stuck`: the last rollout made no progress within its
    deadline. `completed`: at some time since the last change of the template, every wanted pod was available.
    """

    wanted: int
    total: int = 0
    updated: int = 0
    ready: int = 0
    settled: bool = True
    stuck: bool = False
    completed: bool = False

    @property
    def rolled_out(self) -> bool:
        """Every pod there is comes from the present template; whether there are enough is another question."""
        return self.settled and self.total <= self.updated

    @property
    def holds_turn(self) -> bool:
        """Whether other services wait for this one's rollout.

        Not when it is stuck, and not when pods fail that were ready after it: neither may ever end.
        """
        if not self.settled:
            return True
        return not self.stuck and (not self.rolled_out or (self.ready < self.wanted and not self.completed))


class ScalingView(NamedTuple):
    """What the conditions say of the autoscaler. `limited_by` is the last decision's, `dry_run` the spec's."""

    metrics_available: bool | None
    metrics_message: str
    limited_by: str
    dry_run: bool = False


@dataclass(frozen=True)
class View:
    """Everything the conditions are made from."""

    suspended: bool
    mode: ReplicasMode
    workload: Workload
    pods_starting: bool = False
    trouble: Trouble | None = None
    diagnosis: Diagnosis | None = None
    scaling: ScalingView | None = None
    waits_for: str | None = None


def findings(view: View) -> list[Finding]:
    """Return the conditions that apply, in the order of `ConditionType`."""
    found = [_ready(view), _progressing(view), _available(view), _model_loaded(view), *_scaling(view)]
    return found


def merge(found: list[Finding], before: list[dict[str, Any]], generation: int, now: str) -> list[dict[str, Any]]:
    """Return `status.conditions`: a condition's time changes only when its status does."""
    old = {each["type"]: each for each in before}
    return [
        {
            "type": each.type.value,
            "status": each.status,
            "reason": each.reason,
            "message": each.message,
            "observedGeneration": generation,
            "lastTransitionTime": old[each.type]["lastTransitionTime"]
            if each.type in old and old[each.type]["status"] == each.status
            else now,
        }
        for each in found
    ]


def _count(workload: Workload) -> str:
    return _share(workload.ready, workload.wanted, "ready")


def _share(number: int, wanted: int, what: str) -> str:
    """Put a part of the wanted replicas into words; during a scale-down or with surge pods it is more than they are."""
    if number <= wanted:
        return f"{number} of {wanted} replicas {what}"
    return f"{number} replicas {what}, {wanted} wanted"


def _ready(view: View) -> Finding:
    kind, workload = ConditionType.READY, view.workload
    if view.trouble is not None:
        return Finding(kind, "False", view.trouble.reason, view.trouble.message)
    if view.suspended:
        return Finding(kind, "False", "Suspended", "spec.suspend is true: there are no pods until it is false again")
    if workload.wanted == 0:
        return Finding(kind, "True", "ScaledToZero", "no replica is wanted now")
    if not workload.rolled_out and workload.ready:
        updated = _share(workload.updated, workload.wanted, "updated")
        serving = f"{updated}; {workload.ready} serve meanwhile"
        return Finding(kind, "False", "RollingOut", _with(view.diagnosis, serving))
    if workload.ready:
        return Finding(kind, "True", "Serving", _with(view.diagnosis, _count(workload)))
    if view.diagnosis is not None:
        return Finding(kind, "False", view.diagnosis.reason, view.diagnosis.message)
    return Finding(kind, "False", "Starting", _count(workload))


def _progressing(view: View) -> Finding:
    kind, workload = ConditionType.PROGRESSING, view.workload
    if view.trouble is not None:
        return Finding(kind, "False", view.trouble.reason, view.trouble.message)
    if view.waits_for is not None:
        text = f"the new defaults of the engine wait for the rollout of {view.waits_for}"
        return Finding(kind, "True", "WaitingForRollout", text)
    if workload.wanted == 0 and workload.total == 0:
        return Finding(kind, "True", "Complete", "no replica is wanted now")
    if workload.rolled_out and workload.ready >= workload.wanted and workload.total == workload.wanted:
        return Finding(kind, "True", "Complete", _count(workload))
    if workload.stuck:
        reason = view.diagnosis.reason if view.diagnosis else "ProgressDeadlineExceeded"
        return Finding(kind, "False", reason, _with(view.diagnosis, "no progress within rollout.startupTimeoutSeconds"))
    if workload.rolled_out and workload.total > workload.wanted:
        return Finding(kind, "True", "Scaling", _share(workload.total, workload.wanted, "running"))
    reason = "Scaling" if workload.rolled_out else "RollingOut"
    updated = _share(workload.updated, workload.wanted, "updated")
    return Finding(kind, "True", reason, f"{updated}; {_count(workload)}")


def _available(view: View) -> Finding:
    kind, workload = ConditionType.WORKLOAD_AVAILABLE, view.workload
    if workload.ready:
        return Finding(kind, "True", "Available", _count(workload))
    if workload.wanted == 0:
        return Finding(kind, "False", "Suspended" if view.suspended else "ScaledToZero", "no replica is wanted now")
    if view.diagnosis is not None:
        return Finding(kind, "False", view.diagnosis.reason, view.diagnosis.message)
    return Finding(kind, "False", "Starting", _count(workload))


def _model_loaded(view: View) -> Finding:
    kind, workload = ConditionType.MODEL_LOADED, view.workload
    if workload.ready:
        return Finding(kind, "True", "Loaded", f"the model is loaded in {workload.ready} pods")
    if view.diagnosis is not None and view.diagnosis.engine:
        return Finding(kind, "False", view.diagnosis.reason, view.diagnosis.message)
    if view.pods_starting:
        return Finding(kind, "False", "Loading", "the engine is starting")
    return Finding(kind, "Unknown", "NoPods", "no engine is running")


def _scaling(view: View) -> list[Finding]:
    if view.suspended or view.mode == "Fixed":
        return []
    if view.mode == "External":
        message = "an external scaler writes spec.replicas through /scale"
        return [Finding(ConditionType.SCALING_ACTIVE, "True", "External", message)]
    if view.scaling is None:
        message = "no decision yet: the first comes with the first metrics"
        return [Finding(ConditionType.SCALING_ACTIVE, "Unknown", "Starting", message)]
    return [_metrics(view.scaling), _active(view.scaling), _limited(view.scaling)]


def _metrics(scaling: ScalingView) -> Finding:
    if scaling.metrics_available is None:
        return Finding(ConditionType.METRICS_AVAILABLE, "Unknown", "NoReadyPods", scaling.metrics_message)
    status: Truth = "True" if scaling.metrics_available else "False"
    reason = "Reporting" if scaling.metrics_available else "MissingMetrics"
    return Finding(ConditionType.METRICS_AVAILABLE, status, reason, scaling.metrics_message)


def _active(scaling: ScalingView) -> Finding:
    kind = ConditionType.SCALING_ACTIVE
    if scaling.dry_run:
        return Finding(kind, "False", "DryRun", "autoscaling.dryRun is true: decisions are recorded only")
    if scaling.metrics_available is False:
        return Finding(kind, "False", "MissingMetrics", "replicas are held: too few pods report their load")
    return Finding(kind, "True", "Builtin", "the built-in autoscaler decides")


def _limited(scaling: ScalingView) -> Finding:
    limited = scaling.limited_by not in ("None", "DryRun")
    reason = scaling.limited_by if limited else "NotLimited"
    message = (
        LIMITS.get(scaling.limited_by, "see status.scaling.lastDecision")
        if limited
        else "the wanted number of replicas is within every limit"
    )
    return Finding(ConditionType.SCALING_LIMITED, "True" if limited else "False", reason, message)


def _with(diagnosis: Diagnosis | None, text: str) -> str:
    return text if diagnosis is None else f"{text}; {diagnosis.reason}: {diagnosis.message}"
