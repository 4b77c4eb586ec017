"""Serving, draining, ended: what new requests meet, and when the process may leave. Pure, told the time."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Phase(Enum):
    """Where the process stands."""

    SERVING = "serving"
    PROPAGATING = "propagating"
    """Readiness is red, new requests are still accepted: endpoints take a moment to spread."""
    DRAINING = "draining"
    """New requests are refused, running ones end normally."""
    ENDED = "ended"


class Lifecycle:
    """The drain of one process.

    The drain time-out counts from the end of the propagation: the pod's grace period is longer than their sum.
    """

    def __init__(self, propagation_seconds: float, drain_seconds: float) -> None:
        """Begin serving."""
        self._propagation = propagation_seconds
        self._drain = drain_seconds
        self._began: float | None = None
        self._aborted = False
        self.open_exchanges = 0
        """Requests between their first byte in and their last byte out, on routes that generate or tokenise."""
        self.on_change: Callable[[], None] = lambda: None

    def enter(self) -> None:
        """An exchange begins."""
        self.open_exchanges += 1

    def leave(self) -> None:
        """An exchange has ended."""
        self.open_exchanges -= 1
        self.on_change()

    def drain(self, now: float, propagate: bool = True) -> None:
        """Begin to drain; a second call changes nothing."""
        if self._began is None:
            self._began = now if propagate else now - self._propagation
            self.on_change()

    def abort(self) -> None:
        """End at once."""
        self._aborted = True
        self.on_change()

    @property
    def draining(self) -> bool:
        """Whether a drain has begun: readiness is red."""
        return self._began is not None

    @property
    def aborted(self) -> bool:
        """Whether the end was asked for at once."""
        return self._aborted

    def phase(self, now: float) -> Phase:
        """Return the phase at monotonic time `now`."""
        if self._aborted:
            return Phase.ENDED
        if self._began is None:
            return Phase.SERVING
        since = now - self._began
        if since < self._propagation:
            return Phase.PROPAGATING
        if not self.open_exchanges or since >= self._propagation + self._drain:
            return Phase.ENDED
        return Phase.DRAINING

    def seconds_to_next(self, now: float) -> float | None:
        """Return the seconds until time alone changes the phase, None while it does not."""
        if self._began is None:
            return None
        since = now - self._began
        return max(0.0, (self._propagation if since < self._propagation else self._propagation + self._drain) - since)

    def accepts(self, now: float) -> bool:
        """Return whether a new request is taken."""
        return self.phase(now) in (Phase.SERVING, Phase.PROPAGATING)
