"""The gateway's own picker in a simulated fleet: `octavo_operator.gateway.fleet.Fleet` and its policies, unmodified.

The simulator tells it what the control plane, the scrapes and the count filter tell it in a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from octavo_operator.autoscale.types import PodState
from octavo_operator.gateway.fleet import Fleet
from octavo_operator.gateway.policies import Consistent, LeastLoad, RoundRobin
from octavo_operator.gateway.prefix_aware import PrefixAware
from octavo_operator.gateway.types import Endpoint, Outcome, Policy, Sample, Wanted

from .gateway import Fewest, Router
from .pod import SimPod
from .ticket import Ticket

_OUTCOMES: Final = {"done": Outcome.DONE, "cut": Outcome.FAILED}
DIGEST_BYTES: Final = 8


class Picker:
    """One picker with one policy. `scrape_seconds`: how often it looks at the pods."""

    watches_starts = True

    def __init__(self, policy: Policy, scrape_seconds: float = 1.0) -> None:
        """Start without a pod."""
        self.scrape_seconds = scrape_seconds
        self._fleet = Fleet(policy)

    def update(self, pods: Iterable[SimPod]) -> None:
        """See `Router`."""
        self._fleet.update(
            Endpoint(
                uid=pod.uid,
                address=pod.uid,
                ready=pod.state is PodState.READY,
                cordoned=pod.cordoned_at is not None,
                terminating=pod.state is PodState.TERMINATING,
            )
            for pod in pods
            if pod.engine is not None
        )

    def scraped(self, pods: Iterable[SimPod], now: float) -> None:
        """See `Router`."""
        for pod in pods:
            engine = pod.engine
            if engine is None or pod.gone:
                continue
            pod.sync()
            cost = engine.calibration
            self._fleet.sampled(
                Sample(
                    uid=pod.uid,
                    at=now,
                    running=engine.running,
                    waiting=engine.waiting,
                    total_blocks=cost.blocks,
                    block_size=cost.block_size,
                    tick=now,
                    active_blocks=engine.pool.num_active,
                )
            )

    def pick(self, ticket: Ticket, pods: Sequence[SimPod], now: float) -> SimPod:
        """See `Router`."""
        digests = tuple(hash_bytes(name) for name in ticket.request.hashes)
        key = digests[min(1, len(digests) - 1)] if digests else str(ticket.number).encode()
        name = str(ticket.number)
        pick = self._fleet.pick(Wanted(name, digests, key=key), now)
        assert pick is not None, "the gateway holds what no pod takes"
        uid = pick.order[0].uid
        self._fleet.begun(name, uid, now)
        return next(pod for pod in pods if pod.uid == uid)

    def answered(self, ticket: Ticket, now: float) -> None:
        """See `Router`."""
        self._fleet.answered(str(ticket.number), now)

    def ended(self, ticket: Ticket, now: float) -> None:
        """See `Router`."""
        self._fleet.ended(str(ticket.number), now, _OUTCOMES.get(ticket.outcome, Outcome.NOT_STARTED))


def hash_bytes(name: int) -> bytes:
    """Return a trace's block name as the picker takes digests."""
    return name.to_bytes(DIGEST_BYTES, "big")


ROUTERS: Final[dict[str, Callable[[int], Router]]] = {
    "fewest": lambda _: Fewest(),
    "prefix-aware": lambda unit: Picker(PrefixAware(unit)),
    "least-load": lambda _: Picker(LeastLoad()),
    "round-robin": lambda _: Picker(RoundRobin()),
    "consistent": lambda _: Picker(Consistent()),
}
"""By the name that the command line takes; each wants the tokens that one of the trace's hashes stands for."""
