"""Small fleets for the gateway's tests."""

from __future__ import annotations

from octavo_operator.gateway.fleet import Fleet, Pick
from octavo_operator.gateway.policies import LeastLoad
from octavo_operator.gateway.types import Endpoint, Outcome, Policy, Sample, Wanted


def endpoint(number: int, **changes: object) -> Endpoint:
    """Return the pod with this number at its own address."""
    return Endpoint(f"pod-{number}", f"10.0.0.{number}:8000", **changes)  # type: ignore[arg-type]


def sample(number: int, at: float, running: int = 0, waiting: int = 0, **changes: object) -> Sample:
    """Return a sample of an engine that ticks: 1,000 blocks of 16 tokens."""
    values: dict[str, object] = {"total_blocks": 1000, "block_size": 16, "tick": at} | changes
    return Sample(f"pod-{number}", at, running, waiting, **values)  # type: ignore[arg-type]


class Bench:
    """A fleet with a clock: pods that report every second unless told otherwise."""

    def __init__(self, pods: int, policy: Policy | None = None) -> None:
        """Start `pods` endpoints, each with one sample."""
        self.fleet = Fleet(policy or LeastLoad())
        self.now = 100.0
        self.asked = 0
        self.endpoints = {number: endpoint(number) for number in range(pods)}
        self.update()
        self.report()

    def update(self, **by_pod: object) -> None:
        """Hand the endpoints to the fleet."""
        self.fleet.update(self.endpoints.values())

    def report(self, silent: tuple[int, ...] = (), idle: tuple[int, ...] = (), stuck: tuple[int, ...] = ()) -> None:
        """Scrape every pod: truthful, but for those that say nothing, say "idle", or say so without a tick."""
        for number, pod in self.endpoints.items():
            if number in silent:
                continue
            running = 0 if number in idle + stuck else self.fleet.in_flight.count(pod.uid)
            self.fleet.sampled(sample(number, self.now, running, tick=0.0 if number in stuck else self.now))

    def pick(self, wanted: Wanted | None = None, subset: frozenset[str] | None = None) -> Pick | None:
        """Send one request; by default one that shares nothing with another."""
        self.asked += 1
        return self.fleet.pick(wanted or Wanted(f"r{self.asked}"), self.now, subset)

    def send(self, wanted: Wanted | None = None) -> tuple[str, int]:
        """Send one request and return its id and the pod it went to; it must go somewhere."""
        self.asked += 1
        wanted = wanted or Wanted(f"r{self.asked}")
        pick = self.fleet.pick(wanted, self.now)
        assert pick is not None
        self.fleet.begun(wanted.request_id, pick.order[0].uid, self.now)
        return wanted.request_id, int(pick.order[0].uid.removeprefix("pod-"))

    def end(self, request_id: str, outcome: Outcome = Outcome.DONE) -> None:
        """End a request now."""
        self.fleet.ended(request_id, self.now, outcome)
