"""The gateway of a simulated fleet: it picks a pod, or holds the request until there is one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .calibrate import Calibration
from .pod import SimPod
from .policy import GatewaySample
from .ticket import Ticket


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """At most so many held requests, each for at most so long: spec.routing.hold."""

    max_requests: int = 256
    timeout_seconds: float = 600.0


class Router(Protocol):
    """A routing policy in the simulator, and what it is told."""

    scrape_seconds: float
    """How often `scraped` is called; 0: never."""
    watches_starts: bool
    """Whether `answered` is called."""

    def update(self, pods: Iterable[SimPod]) -> None:
        """Take in the pods that there are, whatever their state."""
        ...

    def scraped(self, pods: Iterable[SimPod], now: float) -> None:
        """Look at the pods' load."""
        ...

    def pick(self, ticket: Ticket, pods: Sequence[SimPod], now: float) -> SimPod:
        """Return the pod that shall serve the request, of those that take requests, at least one."""
        ...

    def answered(self, ticket: Ticket, now: float) -> None:
        """A request has its first token."""
        ...

    def ended(self, ticket: Ticket, now: float) -> None:
        """A request that was sent on has ended."""
        ...


class Fewest:
    """The pod with the fewest requests that were sent there and have not ended; the oldest of equals.

    What `LeastLoad` of the real picker does, for traces without prefixes, at a tenth of the time.
    """

    scrape_seconds = 0.0
    watches_starts = False

    def update(self, pods: Iterable[SimPod]) -> None:
        """See `Router`."""

    def scraped(self, pods: Iterable[SimPod], now: float) -> None:
        """See `Router`."""

    def answered(self, ticket: Ticket, now: float) -> None:
        """See `Router`."""

    def ended(self, ticket: Ticket, now: float) -> None:
        """See `Router`."""

    def pick(self, ticket: Ticket, pods: Sequence[SimPod], now: float) -> SimPod:
        """See `Router`."""
        return min(pods, key=lambda pod: (pod.requests, pod.ordinal))


class Gateway:
    """Counts exactly, loses nothing: every request ends with one outcome."""

    def __init__(
        self,
        now: Callable[[], float],
        calibration: Calibration,
        router: Router,
        limits: HoldLimits,
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called for each request that begins to be held."""
        self._now = now
        self._calibration = calibration
        self._router = router
        self._limits = limits
        self._wake = wake
        self.held: deque[Ticket] = deque()
        self.ended_tickets: list[Ticket] = []
        self._pods: list[SimPod] = []
        self._arrivals = 0
        self._in_flight = 0
        self._integral = 0.0
        self._counted_at = 0.0

    def set_pods(self, pods: Sequence[SimPod]) -> None:
        """Take these pods' marks and states into account; send on what was held for want of one."""
        self._pods = [pod for pod in pods if pod.serving]
        self._router.update(pods)
        while self.held and self._pods:
            ticket = self.held.popleft()
            self._count(0)
            self._send(ticket)

    def arrive(self, ticket: Ticket) -> None:
        """Send a request on, hold it, or refuse it."""
        self._arrivals += 1
        if self._pods:
            self._send(ticket)
        elif len(self.held) >= self._limits.max_requests:
            self._end(ticket, "refused")
        else:
            self._count(0)
            self.held.append(ticket)
            self._wake()

    def expire(self) -> None:
        """End what was held too long."""
        now = self._now()
        while self.held and now - self.held[0].request.at >= self._limits.timeout_seconds:
            self._count(0)
            self._end(self.held.popleft(), "expired")

    def answered(self, ticket: Ticket) -> None:
        """A request that was sent on has its first token."""
        self._router.answered(ticket, self._now())

    def ended(self, ticket: Ticket) -> None:
        """A request that was sent on has ended."""
        self._count(-1)
        self._router.ended(ticket, self._now())
        self.ended_tickets.append(ticket)

    def sample(self) -> GatewaySample:
        """Return the counts of this moment."""
        self._count(0)
        held, now = self.held, self._now()
        return GatewaySample(
            arrivals_total=self._arrivals,
            finished_total=len(self.ended_tickets),
            in_flight=self._in_flight,
            in_flight_seconds_total=self._integral,
            held_requests=len(held),
            held_blocks=sum(self._calibration.blocks_for(ticket.request.prompt) for ticket in held),
            held_tokens=sum(ticket.request.prompt for ticket in held),
            held_oldest_seconds=now - held[0].request.at if held else 0.0,
        )

    def _send(self, ticket: Ticket) -> None:
        pod = self._router.pick(ticket, self._pods, self._now())
        self._count(1)
        if not pod.send(ticket):
            self._count(-1)
            self._end(ticket, "too_long")
            self._router.ended(ticket, self._now())

    def _end(self, ticket: Ticket, outcome: str) -> None:
        ticket.end(outcome, self._now())  # type: ignore[arg-type]
        self.ended_tickets.append(ticket)

    def _count(self, change: int) -> None:
        """Bring the integral to the present, then change the number of requests in flight."""
        now = self._now()
        self._integral += (self._in_flight + len(self.held)) * (now - self._counted_at)
        self._counted_at = now
        self._in_flight += change
