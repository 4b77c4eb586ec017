"""What came out of one run, and the figures made of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from .ticket import Ticket

REVERSAL_SECONDS: Final = 600.0
"""A change against one this recent is a reversal: the pod was not needed, or should have stayed."""


class Count(NamedTuple):
    """From `at` seconds on: the replicas wanted, those of the Deployment, and the pods that take requests."""

    at: float
    wanted: int
    replicas: int
    ready: int


class Change(NamedTuple):
    """The policy changed its mind at `at` seconds. `branch`: of the decision record, of ours alone."""

    at: float
    before: int
    after: int
    reason: str
    branch: str = ""


class Objective(NamedTuple):
    """A request keeps it if its first token comes within `ttft` seconds and its mean inter-token time is `itl`."""

    ttft: float
    itl: float = math.inf

    def kept(self, ticket: Ticket) -> bool:
        """Say whether a request kept it: one that was refused or cut did not."""
        ttft, itl = ticket.ttft, ticket.itl
        return ticket.outcome == "done" and ttft is not None and ttft <= self.ttft and (itl is None or itl <= self.itl)


@dataclass(frozen=True, slots=True)
class Result:
    """One run. `gpu_seconds`: over the trace's `seconds`, pods that start and drain included."""

    trace: str
    policy: str
    seconds: float
    tickets: tuple[Ticket, ...]
    counts: tuple[Count, ...]
    changes: tuple[Change, ...]
    gpu_seconds: float
    preemptions: int
    hit_tokens: int
    prompt_tokens: int

    @property
    def gpu_hours(self) -> float:
        """Return the GPU time in hours."""
        return self.gpu_seconds / 3600

    @property
    def outcomes(self) -> Counter[str]:
        """Return how many requests ended how; "" are those that never did."""
        return Counter(ticket.outcome for ticket in self.tickets)

    def attainment(self, objective: Objective) -> float:
        """Return the share of the trace's requests that kept the objective."""
        return sum(map(objective.kept, self.tickets)) / len(self.tickets) if self.tickets else 1.0

    def ttft(self, percent: float) -> float:
        """Return a percentile of the times to the first token; a request without one counts as infinite."""
        return percentile([math.inf if ticket.ttft is None else ticket.ttft for ticket in self.tickets], percent)

    def itl(self, percent: float) -> float:
        """Return a percentile over the requests' mean inter-token times."""
        return percentile([itl for ticket in self.tickets if (itl := ticket.itl) is not None], percent)

    def queueing(self, percent: float) -> float:
        """Return a percentile of the seconds that requests were held by the gateway."""
        return percentile(
            [math.inf if ticket.sent_at is None else ticket.sent_at - ticket.request.at for ticket in self.tickets],
            percent,
        )

    @property
    def reversals(self) -> int:
        """Return how often the policy turned round within `REVERSAL_SECONDS`."""
        return sum(
            (former.after > former.before) != (later.after > later.before) and later.at - former.at <= REVERSAL_SECONDS
            for former, later in pairwise(self._within)
        )

    @property
    def turns(self) -> int:
        """Return how often the policy's direction changed at all."""
        return sum(
            (former.after > former.before) != (later.after > later.before) for former, later in pairwise(self._within)
        )

    @property
    def _within(self) -> list[Change]:
        return [change for change in self.changes if change.at <= self.seconds]

    @property
    def peak(self) -> int:
        """Return the most replicas that were wanted during the trace."""
        return max((count.wanted for count in self.counts if count.at <= self.seconds), default=0)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile, NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan
