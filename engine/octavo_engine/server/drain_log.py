"""Says what a draining server still waits for."""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 3.0
"""Shortest time between two lines."""


class DrainLog:
    """A line when the number of open requests has changed, at most one every few seconds. Told the time."""

    def __init__(self) -> None:
        """Nothing has been said."""
        self._said: int | None = None
        self._when = 0.0

    def begin(self, now: float, open_requests: int, hint: str = "") -> None:
        """Say that a drain begins; a second call says nothing."""
        if self._said is None:
            self._say(now, open_requests, f"Draining: {requests_open(open_requests)}{hint}.")

    def update(self, now: float, open_requests: int) -> float | None:
        """Say what has changed. Returns the seconds until that is due, None if there is nothing to say."""
        if self._said is None or open_requests == self._said or not open_requests:
            return None
        due = self._when + EVERY_SECONDS - now
        if due > 0:
            return due
        self._say(now, open_requests, f"Draining: {requests_open(open_requests)}.")
        return None

    def _say(self, now: float, open_requests: int, line: str) -> None:
        self._said, self._when = open_requests, now
        log.info("%s", line)


def requests_open(count: int) -> str:
    """Return the words for so many requests."""
    return "1 request is open" if count == 1 else f"{count} requests are open"
