"""A new default image rolls one service at a time."""

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
