"""New defaults roll one service at a time."""

import pytest

from octavo_operator.reconcile.conditions import Workload
from octavo_operator.reconcile.rollouts import SETTLING_SECONDS, Rollouts


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_at_a_time_and_the_others_learn_whom_they_wait_for() -> None:
    clock = Clock()
    rollouts = Rollouts(1, clock)
    clock.now = SETTLING_SECONDS
    assert rollouts.admit("a/one") is None
    assert rollouts.admit("a/one") is None
    assert rollouts.admit("a/two") == "a/one"
    rollouts.rolls("a/one", rolling=False)
    assert rollouts.admit("a/two") is None


def test_after_a_restart_one_that_still_rolls_is_heard_first() -> None:
    clock = Clock()
    rollouts = Rollouts(1, clock)
    assert rollouts.admit("a/two") == "the operator, which has just started"
    rollouts.rolls("a/one", rolling=True)
    clock.now = SETTLING_SECONDS
    assert rollouts.admit("a/two") == "a/one"


@pytest.mark.parametrize(
    ("workload", "holds"),
    [
        (Workload(2, 2, 2, 2, completed=True), False),
        (Workload(2, 3, 1, 2), True),
        (Workload(2, 2, 2, 1), True),
        (Workload(2, 2, 0, 2, settled=False, completed=True), True),
        (Workload(2, 2, 0, 2, settled=False, stuck=True), True),
        (Workload(2, 3, 1, 2, stuck=True), False),
        (Workload(2, 2, 2, 0, stuck=True), False),
        (Workload(2, 2, 2, 1, completed=True), False),
    ],
    ids=[
        "done", "old pods are left", "a new pod loads", "just changed", "changed again after it was stuck",
        "stuck with old pods", "stuck with no pod ready", "a pod fails long after",
    ],
)  # fmt: skip
def test_a_rollout_that_may_never_end_does_not_hold_the_turn(workload: Workload, holds: bool) -> None:
    assert workload.holds_turn is holds
