"""Who decides the number of replicas, and what it is. Pure.

In every mode the operator alone writes the Deployment's `replicas`. Which mode wrote it last, and which `spec.replicas`
stood beside it, is remembered in annotations of the Deployment itself: they change together with the number, and
survive a lost status. So every switch of modes keeps the live count.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from octavo_engine import contract
from octavo_operator.api.spec import InferenceServiceSpec, Mode

ANNOTATION_MODE: Final = f"{contract.API_GROUP}/replicas-mode"
ANNOTATION_SPEC_REPLICAS: Final = f"{contract.API_GROUP}/spec-replicas"
ANNOTATION_RESUME: Final = f"{contract.API_GROUP}/replicas-before-suspend"

ReplicasMode = Literal["Fixed", "Builtin", "External"]
_MODES: Final[dict[str, ReplicasMode]] = {"Fixed": "Fixed", "Builtin": "Builtin", "External": "External"}


class LiveReplicas(NamedTuple):
    """What the live Deployment says about its replicas; absent Deployment: `None` instead of this."""

    written: int
    mode: ReplicasMode | None = None
    spec_replicas: int | None = None
    before_suspend: int | None = None

    @property
    def running(self) -> int:
        """The live count, or the one before a suspension: what every switch keeps."""
        return self.written if self.before_suspend is None else self.before_suspend


class Replicas(NamedTuple):
    """The wanted number. `write_scale` is what the operator itself has to write to `/scale`, once."""

    wanted: int
    annotations: dict[str, str]
    write_scale: int | None = None


def mode_of(spec: InferenceServiceSpec) -> ReplicasMode:
    """Return which rule decides the replicas of `spec`."""
    if spec.autoscaling is None:
        return "Fixed"
    return "Builtin" if spec.autoscaling.mode is Mode.BUILTIN else "External"


def live_replicas(deployment: dict[str, Any] | None) -> LiveReplicas | None:
    """Read what a live Deployment says about its replicas."""
    if deployment is None:
        return None
    annotations = deployment["metadata"].get("annotations", {})
    return LiveReplicas(
        written=deployment["spec"].get("replicas", 1),
        mode=_MODES.get(annotations.get(ANNOTATION_MODE, "")),
        spec_replicas=_number(annotations.get(ANNOTATION_SPEC_REPLICAS)),
        before_suspend=_number(annotations.get(ANNOTATION_RESUME)),
    )


def wanted_replicas(spec: InferenceServiceSpec, live: LiveReplicas | None, target: int | None = None) -> Replicas:
    """Return the wanted replicas. `target` is the built-in autoscaler's last word in this process, if it has spoken."""
    mode = mode_of(spec)
    running, write_scale = _running(spec, mode, live, target)
    annotations: dict[str, str] = {ANNOTATION_MODE: mode}
    if mode == "Builtin" and spec.replicas is not None:
        annotations[ANNOTATION_SPEC_REPLICAS] = str(spec.replicas)
    if not spec.suspend:
        return Replicas(running, annotations, write_scale)
    return Replicas(0, annotations | {ANNOTATION_RESUME: str(running)}, write_scale)


def _running(
    spec: InferenceServiceSpec, mode: ReplicasMode, live: LiveReplicas | None, target: int | None
) -> tuple[int, int | None]:
    """Return the replicas were the service not suspended, and what to write to `/scale`."""
    if mode == "Builtin":
        return _builtin(spec, live, target), None
    if live is None:
        return (1, 1) if spec.replicas is None else (spec.replicas, None)
    leftover = live.mode == "Builtin" and spec.replicas == live.spec_replicas
    if spec.replicas is None or leftover:
        return live.running, (live.running if spec.replicas != live.running else None)
    return spec.replicas, None


def _builtin(spec: InferenceServiceSpec, live: LiveReplicas | None, target: int | None) -> int:
    """Return the autoscaler's word, else the live count: what to do about that is the autoscaler's first decision."""
    if target is not None:
        return target
    if live is not None:
        return live.running
    return spec.autoscaling.min_replicas if spec.autoscaling is not None else 1


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
