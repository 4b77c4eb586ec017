"""What the API process counts itself. Plain numbers on one event loop: counting cannot fail and cannot wait."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from octavo_engine import contract
from octavo_engine.contract import Outcome


class Distribution:
    """A histogram's bucket counts; the last bucket is +Inf."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Make empty buckets with upper bounds `bounds`, ascending."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` (negative ones, from a clock set back, as 0) `times` times."""
        value = max(value, 0.0)
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Counters:
    """Totals since the start. `admitted` always equals the ended ones plus those in flight."""

    def __init__(self) -> None:
        """Start from zero."""
        self.admitted = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.outcomes: dict[Outcome, int] = dict.fromkeys(contract.OUTCOMES, 0)
        self.time_to_first_token = Distribution(contract.TIME_TO_FIRST_TOKEN.buckets)
        self.inter_token = Distribution(contract.INTER_TOKEN.buckets)
        self.request_seconds = Distribution(contract.REQUEST_SECONDS.buckets)
        self.step_seconds = Distribution(contract.STEP_SECONDS.buckets)

    @property
    def ended(self) -> int:
        """Sequences that began and have ended."""
        return sum(count for outcome, count in self.outcomes.items() if outcome != "rejected")
