"""Liveness: a watch that is open and deaf is told from one that is retried."""

from octavo_operator.kube.session import WatchPulse


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_watch_nobody_reopens_is_silent_and_a_refused_one_is_not() -> None:
    clock = Clock()
    pulse = WatchPulse(clock)
    assert pulse.silent() == []
    pulse.tried("/deaf")
    for clock.now in range(0, 400, 20):
        pulse.tried("/refused")
    assert pulse.silent() == ["/deaf"]
    pulse.tried("/deaf")
    assert pulse.silent() == []


def test_a_watch_that_is_reopened_in_time_is_never_silent() -> None:
    clock = Clock()
    pulse = WatchPulse(clock)
    for clock.now in range(0, 1000, WatchPulse.WATCH_SECONDS + 20):
        assert pulse.silent() == []
        pulse.tried("/healthy")
