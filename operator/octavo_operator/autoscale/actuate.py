"""From a desired count to what is done to pods and Deployment: uncordon, give up, cordon, lower. Pure, level-based.

Used in every mode. It keeps nothing between calls: the marks on the pods are its memory, so it may be run again after
any crash, and a pass that finds nothing to do returns the live count and no action.

                 desired > unmarked                desired < unmarked
    marked pod ------------------> uncordon        surplus -> absent pods, then unscheduled and starting ones, at once
       |                                                   -> then the serving pods with the least work: cordon
       +-- no work left, or the drain time-out passed --> replicas lowered by the number of marked pods
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from octavo_engine import contract

from .pods import format_time
from .types import Pod, PodSample, PodState


class Action(NamedTuple):
    """One change to one pod's mark. `GiveUp` marks a pod that never served; its replica goes in the same pass."""

    kind: Literal["Uncordon", "Cordon", "GiveUp"]
    pod: str
    uid: str
    reason: str


class Actuation(NamedTuple):
    """The Deployment's replicas after this pass, and the marks to set before they are written, in order."""

    replicas: int
    actions: tuple[Action, ...] = ()


def actuate(
    *,
    desired: int,
    replicas: int,
    pods: Sequence[Pod],
    samples: Mapping[str, PodSample],
    drain_timeout_seconds: int,
    now: float,
    rolling: bool = False,
) -> Actuation:
    """Return the next step from the live Deployment (`replicas`, its `pods`) towards `desired`.

    `samples` holds the pods' last valid samples by UID; a serving pod without one counts as busy. `rolling`: a rollout
    is moving pods of two revisions and makes progress; then nothing is taken away, since the ReplicaSets would choose
    other pods than the marked ones.
    """
    present = [pod for pod in pods if pod.present]
    marked = [pod for pod in present if pod.cordoned]
    # Replicas already lowered but not yet followed by the ReplicaSet: its victims are marked and must stay so, or it
    # would choose another pod.
    leaving = min(len(marked), max(0, len(present) - replicas))
    staying = len(marked) - leaving
    unmarked = replicas - staying
    if desired > unmarked:
        back = () if leaving else _uncordon(marked, desired - unmarked, desired)
        return Actuation(desired + staying - len(back), back)
    if rolling:
        return Actuation(replicas)
    restamped = tuple(
        Action("Cordon", pod.name, pod.uid, "its mark carries no legible time")
        for pod in marked
        if pod.cordoned_at is None
    )
    if staying and all(_finished(pod, samples, drain_timeout_seconds, now) for pod in marked):
        # New marks wait for the next pass: the ReplicaSet could not tell them from the finished ones.
        return Actuation(replicas - staying)
    lowered, new_marks = _take(unmarked - desired, replicas, present, samples, desired)
    return Actuation(replicas - lowered, restamped + new_marks)


def _uncordon(marked: Sequence[Pod], count: int, desired: int) -> tuple[Action, ...]:
    # The latest mark first: its pod has the most streams left and the warmest cache; a Ready one before any other.
    order = sorted(marked, key=lambda pod: (pod.state is not PodState.READY, -(pod.cordoned_at or 0.0), pod.name))
    return tuple(Action("Uncordon", pod.name, pod.uid, f"{desired} replicas are wanted") for pod in order[:count])


def _take(
    surplus: int, replicas: int, present: Sequence[Pod], samples: Mapping[str, PodSample], desired: int
) -> tuple[int, tuple[Action, ...]]:
    """Return how many replicas go at once, and the marks to set, for `surplus` replicas too many."""
    absent = min(surplus, max(0, replicas - len(present)))
    surplus -= absent
    victims = sorted((pod for pod in present if not pod.cordoned), key=lambda pod: _victim_order(pod, samples))[
        :surplus
    ]
    given_up = [pod for pod in victims if _never_served(pod, samples)]
    why = f"{desired} replicas are wanted"
    return absent + len(given_up), tuple(
        Action("GiveUp", pod.name, pod.uid, f"{why} and it is {pod.state.value}")
        if pod in given_up
        else Action("Cordon", pod.name, pod.uid, f"{why} and it has the least work left")
        for pod in victims
    )


def _never_served(pod: Pod, samples: Mapping[str, PodSample]) -> bool:
    # A pod that lost its readiness may still carry streams: then it answers scrapes, and goes the gentle way.
    return pod.state is not PodState.READY and _work(pod, samples) in (None, (0, 0, 0))


def _work(pod: Pod, samples: Mapping[str, PodSample]) -> tuple[int, int, int] | None:
    """Return (requests, waiting tokens, active blocks) of a pod, or None if unknown."""
    sample = samples.get(pod.uid)
    if sample is None or sample.queue is None:
        return None
    active = sample.kv.active if sample.kv else 0
    return sample.queue.running + sample.queue.waiting, sample.queue.tokens, active


def _victim_order(pod: Pod, samples: Mapping[str, PodSample]) -> tuple[int, tuple[int, int, int], float]:
    """Sort key: not on a node, starting, then serving with the least work; unknown work last; youngest on a tie."""
    work = _work(pod, samples)
    if _never_served(pod, samples):
        rank = 0 if not pod.scheduled else 1
    else:
        rank = 2 if work is not None else 3
    return rank, work or (0, 0, 0), -pod.created_at


def _finished(pod: Pod, samples: Mapping[str, PodSample], drain_timeout_seconds: int, now: float) -> bool:
    if pod.cordoned_at is not None and now - pod.cordoned_at >= drain_timeout_seconds:
        return True
    sample = samples.get(pod.uid)
    if sample is None:
        return _never_served(pod, samples)
    # A sample from before the mark has spread may miss requests that a picker still sent.
    fresh = pod.cordoned_at is not None and sample.at - pod.cordoned_at >= contract.DRAIN_PROPAGATION_SECONDS
    return fresh and sample.queue is not None and sample.queue.running + sample.queue.waiting == 0


def pod_patch(action: Action, now: float) -> dict[str, Any]:
    """Return the merge patch of a pod's metadata that carries `action` out; None removes an annotation."""
    if action.kind == "Uncordon":
        annotations = {contract.ANNOTATION_CORDONED: None, contract.ANNOTATION_DELETION_COST: None}
        return {"metadata": {"annotations": annotations}}
    # One below a cordoned pod's cost: should it turn Ready in this moment, it still goes before one that drains.
    cost = contract.CORDONED_DELETION_COST - (1 if action.kind == "GiveUp" else 0)
    return {
        "metadata": {
            "annotations": {
                contract.ANNOTATION_CORDONED: format_time(now),
                contract.ANNOTATION_DELETION_COST: str(cost),
            }
        }
    }
