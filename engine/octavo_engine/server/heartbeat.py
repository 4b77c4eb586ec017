"""Whether the engine lives, judged by the age of its last tick."""

from __future__ import annotations


class Heartbeat:
    """Ticks come after every step and at least once a second when idle.

    A busy engine ticks late, as late as its longest step: that much is always allowed on top of the time-out. Before
    the first tick (loading) silence proves nothing: a start that never ends is the startup probe's business.
    """

    def __init__(self, timeout: float) -> None:
        """Allow `timeout` seconds beyond the longest step seen."""
        self._timeout = timeout
        self._last: float | None = None
        self._longest_step = 0.0

    def tick(self, now: float, step_seconds: float) -> None:
        """Note a tick at monotonic time `now`, after a step of `step_seconds`."""
        self._last = now
        self._longest_step = max(self._longest_step, step_seconds)

    def age(self, now: float) -> float:
        """Return the seconds since the last tick, 0 before the first."""
        return 0.0 if self._last is None else now - self._last

    def alive(self, now: float) -> bool:
        """Return whether the last tick is recent enough."""
        return self.seconds_left(now) >= 0

    def seconds_left(self, now: float) -> float:
        """Return the seconds until silence means that it does not live; negative since then."""
        return self._timeout + self._longest_step - self.age(now)
