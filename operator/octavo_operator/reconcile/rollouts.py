"""How many services may roll at once because the defaults of the engine changed.

An upgrade of the operator changes the image of every service that names none, and its other defaults reach every
service. All at once, that would restart the whole fleet: so they take turns, and the ones that wait keep all the
defaults they have and say whom they wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

MAX_CONCURRENT_ROLLOUTS: Final = 1
SETTLING_SECONDS: Final = 10.0
"""After a start nobody is admitted until every service had its first pass and said whether it is still rolling."""


class Rollouts:
    """Who rolls now. Rebuilt from the services' passes after a restart: nothing is stored."""

    def __init__(self, limit: int = MAX_CONCURRENT_ROLLOUTS, clock: Callable[[], float] = time.monotonic) -> None:
        """Let `limit` services roll at once."""
        self._limit = limit
        self._clock = clock
        self._opens_at = clock() + SETTLING_SECONDS
        self._rolling: set[str] = set()

    def rolls(self, service: str, *, rolling: bool) -> None:
        """Take in whether a service with the present defaults is still rolling."""
        if rolling:
            self._rolling.add(service)
        else:
            self._rolling.discard(service)

    def admit(self, service: str) -> str | None:
        """Let a service begin to roll: `None`, or whom it waits for."""
        if service in self._rolling:
            return None
        if self._clock() < self._opens_at:
            return "the operator, which has just started"
        if len(self._rolling) >= self._limit:
            return min(self._rolling)
        self._rolling.add(service)
        return None
