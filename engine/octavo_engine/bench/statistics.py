"""Percentiles, medians with their spread, goodput. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

PERCENTILES: Final = (50, 90, 95, 99)


class Spread(msgspec.Struct, frozen=True):
    """The median of repetitions, the lowest and the highest of them, how many there were, and all in their order."""

    median: float
    low: float
    high: float
    count: int
    values: tuple[float, ...] = ()

    def scaled(self, factor: float) -> Spread:
        """Return it in another unit, `factor` (positive) times as large a number."""
        return spread([value * factor for value in self.values])

    def __str__(self) -> str:
        """Return the median, and the range if there is one."""
        if self.count == 1:
            return number(self.median)
        return f"{number(self.median)} ({number(self.low)}–{number(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values), tuple(values))


def repetitions(found: Spread) -> str:
    """Return how many there were, in words."""
    return "one repetition" if found.count == 1 else f"{found.count} repetitions"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` % of the values do not exceed (nearest rank); NaN for none.

    Nearest rank and not interpolation: a failed request is an infinite value, and half of infinity is no latency.
    """
    if not values:
        return math.nan
    rank = max(1, math.ceil(len(values) * percent / 100))
    return sorted(values)[rank - 1]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the usual percentiles, and the mean of the finite values."""
    ordered = sorted(values)
    found = {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    finite = [value for value in ordered if math.isfinite(value)]
    return {**found, "mean": statistics.fmean(finite) if finite else math.nan}


def goodput(latencies: Sequence[tuple[float, float]], slo_ttft: float, slo_itl: float) -> float:
    """Return the share of requests whose time to first token and mean inter-token time keep the objective.

    A failed request counts as infinite, so it never does. 1.0 of no request is no promise: NaN.
    """
    if not latencies:
        return math.nan
    return sum(ttft <= slo_ttft and itl <= slo_itl for ttft, itl in latencies) / len(latencies)


def number(value: float) -> str:
    """Return a figure with three to four significant digits, as people write it."""
    if not math.isfinite(value):
        return "none" if math.isnan(value) else "∞"
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
