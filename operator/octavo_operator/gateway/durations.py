"""How long answers last, learned from those that ended: what tells which endpoint will soon have less to do."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from typing import Final

REMEMBERED: Final = 512
"""Enough for the tail's shape, few enough to follow a change of traffic within minutes."""


class Durations:
    """The last REMEMBERED durations in seconds, and the chance that one which has lasted so long lasts longer."""

    def __init__(self) -> None:
        """Start with nothing learned: everything is expected to last."""
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        """Learn one duration."""
        if len(self._order) == REMEMBERED:
            oldest = self._order.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
        self._order.append(seconds)
        insort(self._sorted, seconds)

    def survival(self, age: float, horizon: float) -> float:
        """Return the chance that what has lasted `age` seconds lasts `horizon` more; 1 where nothing is known.

        What has outlasted all that ended is taken for endless: it is the long stream, not the one about to end.
        """
        alive = len(self._sorted) - bisect_right(self._sorted, age)
        if not alive:
            return 1.0
        return (len(self._sorted) - bisect_right(self._sorted, age + horizon)) / alive
