"""From desired to deeds: uncordon, give up, cordon, lower; run to its end against a ReplicaSet's order of deletion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine import contract
from octavo_operator.autoscale import Actuation, Pod, PodSample, PodState, actuate, observe_pod, pod_patch
from octavo_operator.autoscale.actuate import Action

from .fleet import T0, pod, sample

DRAIN = 300


def step(
    desired: int,
    replicas: int,
    pods: list[Pod],
    samples: Sequence[PodSample] = (),
    *,
    now: float = T0,
    rolling: bool = False,
) -> tuple[int, list[tuple[str, str]]]:
    result = actuate(
        desired=desired,
        replicas=replicas,
        pods=pods,
        samples={one.uid: one for one in samples},
        drain_timeout_seconds=DRAIN,
        now=now,
        rolling=rolling,
    )
    return result.replicas, [(action.kind, action.pod) for action in result.actions]


def marked(name: str, ago: float = 60, **fields: object) -> Pod:
    return pod(name, cordoned=True, cordoned_at=T0 - ago, **fields)


A, B, C = pod("a"), pod("b"), pod("c")
STARTING = pod("s", PodState.STARTING, created_at=T0)
UNSCHEDULED = pod("u", PodState.UNSCHEDULABLE, scheduled=False, created_at=T0)


def test_nothing_to_do_is_nothing_done() -> None:
    assert step(3, 3, [A, B, C]) == (3, [])


# --- Growing ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("desired", "replicas", "pods", "expected"),
    [
        (4, 3, [A, B, C], (4, [])),
        (3, 3, [A, B, marked("x")], (3, [("Uncordon", "x")])),
        (5, 3, [A, B, marked("x")], (5, [("Uncordon", "x")])),
        (2, 3, [A, marked("x", 10), marked("y", 90)], (3, [("Uncordon", "x")])),  # the latest mark first
        (1, 0, [], (1, [])),
    ],
)
def test_growing_takes_marks_back_before_it_adds(
    desired: int, replicas: int, pods: list[Pod], expected: tuple[int, list[tuple[str, str]]]
) -> None:
    assert step(desired, replicas, pods) == expected


def test_a_victim_that_its_replica_set_is_about_to_remove_is_not_unmarked() -> None:
    assert step(2, 2, [A, B, marked("x")]) == (2, [])
    assert step(3, 2, [A, B, marked("x")]) == (3, []), "grown in that moment: the mark goes at the next pass"
    assert step(3, 3, [A, B, marked("x")]) == (3, [("Uncordon", "x")])


def test_a_marked_pod_that_was_not_the_one_removed_is_unmarked() -> None:
    """The ReplicaSet took `b`, which had just lost its readiness, instead of the marked `x`."""
    assert step(2, 2, [A, marked("x")]) == (2, [("Uncordon", "x")])


# --- Shrinking --------------------------------------------------------------------------------------------------
def test_the_pod_with_the_least_work_left_is_marked_and_nothing_is_lowered() -> None:
    samples = [sample(A, 100, running=3), sample(B, 900, running=1), sample(C, 100, running=1, waiting=1)]
    assert step(2, 3, [A, B, C], samples) == (3, [("Cordon", "b")])
    assert step(1, 3, [A, B, C], samples) == (3, [("Cordon", "b"), ("Cordon", "c")])


def test_unknown_work_is_the_most_and_the_youngest_goes_on_a_tie() -> None:
    young = pod("y", created_at=T0 - 5)
    assert step(1, 2, [A, B], [sample(A, 900, running=30)]) == (2, [("Cordon", "a")])
    assert step(1, 2, [A, young], [sample(A), sample(young)]) == (2, [("Cordon", "y")])


@pytest.mark.parametrize(
    ("desired", "expected"),
    [
        (4, (4, [("GiveUp", "u")])),
        (3, (3, [("GiveUp", "u"), ("GiveUp", "s")])),
        (2, (3, [("GiveUp", "u"), ("GiveUp", "s"), ("Cordon", "a")])),
    ],
)
def test_unscheduled_then_starting_pods_are_given_up_before_a_serving_one(
    desired: int, expected: tuple[int, list[tuple[str, str]]]
) -> None:
    samples = [sample(one, running=number) for number, one in enumerate((A, B, C))]
    assert step(desired, 5, [A, B, C, STARTING, UNSCHEDULED], samples) == expected


def test_replicas_without_a_pod_go_first() -> None:
    """A quota refused two of five pods."""
    assert step(4, 5, [A, B, C]) == (4, [])
    assert step(2, 5, [A, B, C], [sample(A)]) == (3, [("Cordon", "a")])


def test_a_pod_that_lost_its_readiness_with_streams_open_is_cordoned_not_given_up() -> None:
    flapped = replace(A, state=PodState.STARTING)
    assert step(1, 2, [flapped, B], [sample(flapped, 50, running=1), sample(B, 50, running=2)]) == (
        2,
        [("Cordon", "a")],
    )


@pytest.mark.parametrize(
    ("ago", "samples", "replicas"),
    [
        (60, [sample("uid-x", running=1)], 3),
        (60, [sample("uid-x", running=0, waiting=1)], 3),
        (60, [sample("uid-x")], 2),
        (60, [], 3),  # unknown is busy
        (60, [sample("uid-x", waiting=None)], 3),
        (60, [sample("uid-x", at=T0 - 70)], 3),  # from before the mark
        (60, [sample("uid-x", at=T0 - 58)], 3),  # before the mark had spread
        (DRAIN, [sample("uid-x", running=1)], 2),
        (DRAIN, [], 2),
    ],
)
def test_replicas_are_lowered_when_the_victim_is_empty_or_out_of_time(
    ago: float, samples: list[PodSample], replicas: int
) -> None:
    assert step(2, 3, [A, B, marked("x", ago)], samples) == (replicas, [])


def test_several_victims_are_lowered_together() -> None:
    pods = [A, marked("x"), marked("y")]
    assert step(1, 3, pods, [sample("uid-x"), sample("uid-y", running=1)]) == (3, [])
    assert step(1, 3, pods, [sample("uid-x"), sample("uid-y")]) == (1, [])


def test_finished_victims_go_before_new_ones_are_marked() -> None:
    assert step(1, 3, [A, B, marked("x")], [sample("uid-x"), sample(A), sample(B)]) == (2, [])


def test_a_mark_without_a_legible_time_is_stamped_again() -> None:
    broken = pod("x", cordoned=True)
    assert step(1, 2, [A, broken], [sample(broken)]) == (2, [("Cordon", "x")])


def test_terminating_and_ended_pods_count_for_nothing() -> None:
    gone = [pod("t", PodState.TERMINATING, cordoned=True, cordoned_at=T0), pod("e", PodState.ENDED)]
    assert step(2, 2, [A, B, *gone]) == (2, [])


def test_a_rollout_in_progress_takes_nothing_away_but_may_grow() -> None:
    assert step(1, 3, [A, B, C, STARTING], rolling=True) == (3, [])
    assert step(2, 3, [A, B, marked("x")], [sample("uid-x")], rolling=True) == (3, [])
    assert step(4, 3, [A, B, C, STARTING], rolling=True) == (4, [])


def test_patches_set_and_remove_the_mark() -> None:
    patches = [
        pod_patch(Action(kind, "a", "uid-a", "why"), T0)["metadata"]["annotations"] for kind in ("Cordon", "GiveUp")
    ]
    assert [patch[contract.ANNOTATION_DELETION_COST] for patch in patches] == ["-1000", "-1001"]
    manifest = {"metadata": {"uid": "u", "name": "a", "annotations": patches[0]}}
    assert (observe_pod(manifest).cordoned, observe_pod(manifest).cordoned_at) == (True, T0)
    removed = pod_patch(Action("Uncordon", "a", "uid-a", "why"), T0)["metadata"]["annotations"]
    assert removed == {contract.ANNOTATION_CORDONED: None, contract.ANNOTATION_DELETION_COST: None}


# --- To its end -------------------------------------------------------------------------------------------------
class World:
    """A Deployment with the ReplicaSet's order of deletion: not on a node, not ready, lowest cost, youngest."""

    def __init__(self, pods: list[Pod], work: dict[str, int]) -> None:
        self.pods, self.work, self.replicas, self.now = pods, work, len(pods), T0
        self.cost: dict[str, int] = {}
        self.cut: list[str] = []

    def apply(self, result: Actuation) -> None:
        for action in result.actions:
            annotations = pod_patch(action, self.now)["metadata"]["annotations"]
            cost = annotations[contract.ANNOTATION_DELETION_COST]
            self.cost[action.uid] = int(cost or 0)
            self.pods = [
                replace(one, cordoned=cost is not None, cordoned_at=self.now if cost else None)
                if one.uid == action.uid
                else one
                for one in self.pods
            ]
        self.replicas = result.replicas

    def reconcile(self) -> None:
        order = sorted(
            self.pods,
            key=lambda one: (one.scheduled, one.state is PodState.READY, self.cost.get(one.uid, 0), -one.created_at),
        )
        for victim in order[: max(0, len(self.pods) - self.replicas)]:
            if self.work.get(victim.uid) and not (victim.cordoned_at and self.now - victim.cordoned_at >= DRAIN):
                self.cut.append(victim.name)
            self.pods.remove(victim)
        for number in range(self.replicas - len(self.pods)):
            self.pods.append(pod(f"new-{self.now:.0f}-{number}", PodState.STARTING, created_at=self.now))


@settings(max_examples=150, deadline=None)
@given(
    states=st.lists(
        st.sampled_from([PodState.READY, PodState.READY, PodState.STARTING, PodState.UNSCHEDULABLE]), max_size=7
    ),
    work=st.lists(st.integers(0, 40), min_size=7, max_size=7),
    goals=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    lag=st.integers(0, 2),
)
def test_any_way_to_any_count_converges_and_cuts_no_stream(
    states: list[PodState], work: list[int], goals: list[int], lag: int
) -> None:
    pods = [
        pod(str(number), state, scheduled=state is not PodState.UNSCHEDULABLE, created_at=T0 - 1000 - number)
        for number, state in enumerate(states)
    ]
    world = World(pods, {one.uid: work[n] if one.state is PodState.READY else 0 for n, one in enumerate(pods)})
    for goal in goals:
        for period in range(45):
            samples = {
                one.uid: sample(one, running=world.work.get(one.uid, 0), at=world.now)
                for one in world.pods
                if one.state is PodState.READY
            }
            world.apply(
                actuate(
                    desired=goal,
                    replicas=world.replicas,
                    pods=world.pods,
                    samples=samples,
                    drain_timeout_seconds=DRAIN,
                    now=world.now,
                )
            )
            if period % (lag + 1) == lag:
                world.reconcile()
            world.work = {uid: max(0, left - 1) for uid, left in world.work.items()}
            world.now += 10
        assert world.replicas == goal == len(world.pods)
        assert not any(one.cordoned for one in world.pods)
    assert not world.cut
