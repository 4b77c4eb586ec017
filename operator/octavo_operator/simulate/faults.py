"""What goes wrong in a simulated fleet, and when. Pods are named by their ordinal: 0 is the first ever created."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Span(NamedTuple):
    """From a time until before another, in seconds of the simulation."""

    begin: float
    end: float

    def holds(self, now: float) -> bool:
        """Say whether `now` is within."""
        return self.begin <= now < self.end


@dataclass(frozen=True, slots=True)
class Faults:
    """Nothing goes wrong by default.

    `scrape_loss`: the share of scrapes that get no answer. `metrics_gone`: when none gets any. `never_ready`: pods that
    load for ever. `pending_seconds`: pods that no node takes for so long. `ghost_seconds`: how long the series of a pod
    that is gone are still seen. `restarts`: when the autoscaler's process is replaced. `kills`: (time, ordinal) of pods
    that die at once.
    """

    scrape_loss: float = 0.0
    metrics_gone: Sequence[Span] = ()
    never_ready: frozenset[int] = frozenset()
    pending_seconds: Mapping[int, float] = field(default_factory=dict)
    ghost_seconds: float = 0.0
    restarts: Sequence[float] = ()
    kills: Sequence[tuple[float, int]] = ()

    def scrape_answers(self, now: float, rng: random.Random) -> bool:
        """Say whether a scrape at `now` gets its answer."""
        if any(span.holds(now) for span in self.metrics_gone):
            return False
        return self.scrape_loss == 0 or rng.random() >= self.scrape_loss
