"""The requests that this picker has in flight, by endpoint: the one load figure that no scrape can delay.

A request is counted the moment it is picked (two picks in one scrape period must not see the same idle pod: faults.md,
B58) and is counted once whatever is told of it, in whatever order and how often: the count filter's news can be lost,
doubled, or come from before a restart of the picker.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

LEASE_SECONDS: Final = 10.0
"""A pick of which the count filter tells nothing for so long was never sent on: the client left, a filter refused."""
HISTORY_SECONDS: Final = 30.0
"""How far back `count_at` can look: further than the oldest sample that still counts."""


class Flight(NamedTuple):
    """A request in flight. `answered_at` is when its response headers came, None before."""

    uid: str
    picked_at: float
    streamed: bool = True
    begun: bool = False
    answered_at: float | None = None


class InFlight:
    """Counts by endpoint. Times are the picker's seconds and never run backwards."""

    def __init__(self) -> None:
        """Start with nothing in flight."""
        self._flights: dict[str, Flight] = {}
        self._by_endpoint: dict[str, dict[str, Flight]] = {}
        self._history: dict[str, deque[tuple[float, int]]] = {}
        self._unconfirmed: deque[tuple[float, str]] = deque()

    def __len__(self) -> int:
        """Return how many requests are in flight."""
        return len(self._flights)

    def picked(self, request_id: str, uid: str, now: float, streamed: bool = True) -> None:
        """Count a request that was just picked; a second pick of the same id moves it."""
        self._put(request_id, Flight(uid, now, streamed), now)
        self._unconfirmed.append((now, request_id))

    def begun(self, request_id: str, uid: str, now: float) -> None:
        """Note that Envoy sent the request to `uid`: the endpoint that served may be a later one of the list.

        An id unknown here was picked before a restart of the picker: it is counted from now on.
        """
        flight = self._flights.get(request_id)
        self._put(
            request_id, Flight(uid, now, begun=True) if flight is None else flight._replace(uid=uid, begun=True), now
        )

    def answered(self, request_id: str, now: float) -> None:
        """Note the response headers of a request."""
        flight = self._flights.get(request_id)
        if flight is not None and flight.answered_at is None:
            self._put(request_id, flight._replace(begun=True, answered_at=now), now)

    def ended(self, request_id: str, now: float) -> Flight | None:
        """Uncount a request and return it; None if it was not in flight, or ended before."""
        flight = self._flights.pop(request_id, None)
        if flight is not None:
            self._drop(request_id, flight, now)
        return flight

    def expire(self, now: float) -> list[str]:
        """Uncount the picks of which nothing was heard for LEASE_SECONDS and return their ids."""
        lost = []
        while self._unconfirmed and self._unconfirmed[0][0] + LEASE_SECONDS <= now:
            at, request_id = self._unconfirmed.popleft()
            flight = self._flights.get(request_id)
            if flight is not None and not flight.begun and flight.picked_at == at:
                self.ended(request_id, now)
                lost.append(request_id)
        return lost

    def count(self, uid: str) -> int:
        """Return how many requests are in flight to an endpoint."""
        return len(self._by_endpoint.get(uid, ()))

    def count_at(self, uid: str, at: float) -> int:
        """Return how many were in flight to an endpoint at a time not longer ago than HISTORY_SECONDS."""
        count = 0
        for time, then in self._history.get(uid, ()):
            if time > at:
                break
            count = then
        return count

    def flights(self, uid: str) -> tuple[Flight, ...]:
        """Return the requests in flight to an endpoint."""
        return tuple(self._by_endpoint.get(uid, {}).values())

    def oldest_unanswered(self, uid: str) -> float | None:
        """Return when the request that waits longest for its response headers was picked; None if none waits.

        Requests that are not streamed get theirs with their last byte: they say nothing about a stuck endpoint.
        """
        waiting = (f.picked_at for f in self._by_endpoint.get(uid, {}).values() if f.streamed and f.answered_at is None)
        return min(waiting, default=None)

    def _put(self, request_id: str, flight: Flight, now: float) -> None:
        before = self._flights.get(request_id)
        if before is not None and before.uid != flight.uid:
            self._drop(request_id, before, now)
            before = None
        self._flights[request_id] = flight
        self._by_endpoint.setdefault(flight.uid, {})[request_id] = flight
        if before is None:
            self._note(flight.uid, now)

    def _drop(self, request_id: str, flight: Flight, now: float) -> None:
        at = self._by_endpoint[flight.uid]
        del at[request_id]
        self._note(flight.uid, now)
        if not at:
            del self._by_endpoint[flight.uid]

    def _note(self, uid: str, now: float) -> None:
        """Remember the count from `now` on; of what is older than the history, only the last entry is kept."""
        history = self._history.setdefault(uid, deque())
        history.append((now, len(self._by_endpoint.get(uid, ()))))
        while len(history) > 1 and history[1][0] <= now - HISTORY_SECONDS:
            history.popleft()

    def forget(self, uid: str) -> None:
        """Drop the history of an endpoint that is gone; what is in flight to it still ends one by one."""
        if uid not in self._by_endpoint:
            self._history.pop(uid, None)
