"""The two ends of every comparison: a fixed count, and an oracle that knows the trace. Source: operators.md §2.11.

The oracle is given the *load curve*: how many pods' worth of work the fleet holds at each moment if no request ever has
to wait. It asks for a pod one cold start before it is needed, and lets one go unless it would be needed again within a
cold start: a pod that is let go and asked for again costs its cold start, so this is the cheapest schedule that always
has the pods that the curve needs. `utilization` trades GPU-hours for attainment; `smooth_seconds` lets requests wait:
the curve is averaged over that time first. Sweep both and keep the cheapest of each attainment for a lower bound.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from octavo_operator.simulate.policy import Bounds, FleetSample, Removal, Wanted


class FixedN:
    """Always `replicas` pods: the most expensive way to an attainment, and the parameter to sweep."""

    period_seconds = 60.0
    scrape_seconds = 60.0
    wakes = False
    removal = Removal.CORDON

    def __init__(self, replicas: int) -> None:
        self.name = f"fixed({replicas})"
        self._replicas = replicas

    def desired(self, sample: FleetSample) -> Wanted:
        """Return the count."""
        return Wanted(self._replicas, "Fixed")

    def restarted(self) -> FixedN:
        """Return itself: there is nothing to forget."""
        return self


class Arrival(NamedTuple):
    """One request of the trace: its time in seconds, and the prompt and output tokens that the engine will do."""

    at: float
    prompt_tokens: int
    output_tokens: int


class Shares(NamedTuple):
    """Shares of one pod: of its blocks, of its sequences, of its prefill rate."""

    blocks: float
    sequences: float
    prefill: float


@dataclass(frozen=True, slots=True)
class PodCapacity:
    """What one pod does, as the simulated engine is set: blocks of tokens, sequences, rates in tokens and seconds.

    A request alone takes `prompt / prefill_tokens_per_second + output * token_seconds`; a pod's prefill is shared.
    """

    blocks: int
    block_size: int
    max_sequences: int
    prefill_tokens_per_second: float
    token_seconds: float

    def seconds(self, request: Arrival) -> float:
        """Return how long a request runs that never waits."""
        return request.prompt_tokens / self.prefill_tokens_per_second + request.output_tokens * self.token_seconds

    def shares(self, request: Arrival) -> Shares:
        """Return what it takes of a pod while it runs; blocks on average, since its output grows."""
        blocks = (request.prompt_tokens + request.output_tokens / 2) / self.block_size / self.blocks
        prefill = request.prompt_tokens / self.prefill_tokens_per_second / max(self.seconds(request), 1e-9)
        return Shares(blocks, 1 / self.max_sequences, prefill)


class LoadCurve:
    """Pods' worth of load over time: constant from each point to the next, 0 before the first."""

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        """Take (seconds, pods' worth), ascending in time."""
        ordered = list(points)
        self._times = [at for at, _ in ordered]
        self._loads = [load for _, load in ordered]

    @classmethod
    def of(cls, trace: Iterable[Arrival], capacity: PodCapacity) -> LoadCurve:
        """Return the curve of a trace of which no request waits: the scarcest share's, at each moment."""
        steps: list[tuple[float, int, Shares]] = []
        for request in trace:
            shares = capacity.shares(request)
            steps += [(request.at, 1, shares), (request.at + capacity.seconds(request), -1, shares)]
        total, points = [0.0, 0.0, 0.0], []
        for at, sign, shares in sorted(steps, key=lambda step: step[:2]):
            total = [max(0.0, load + sign * share) for load, share in zip(total, shares, strict=True)]
            points.append((at, max(total)))
        return cls(points)

    def smoothed(self, seconds: float) -> LoadCurve:
        """Return the curve of means: each slot of `seconds` has the mean of its own time. 0 seconds: this curve."""
        if seconds <= 0 or not self._times:
            return self
        start = math.floor(self._times[0] / seconds) * seconds
        areas = [0.0] * (math.ceil((self._times[-1] - start) / seconds) + 1)
        for (at, until), load in zip(pairwise(self._times), self._loads, strict=False):
            while at < until:
                slot = math.floor((at - start) / seconds + 1e-9)
                end = min(until, start + (slot + 1) * seconds)
                areas[slot] += load * (end - at)
                at = end
        return LoadCurve((start + slot * seconds, area / seconds) for slot, area in enumerate(areas))

    def peak(self, begin: float, end: float) -> float:
        """Return the highest load from `begin` to `end`, both included."""
        first = bisect_right(self._times, begin)
        last = bisect_right(self._times, end)
        return max([self._loads[first - 1] if first else 0.0, *self._loads[first:last]])


class Oracle:
    """The schedule of who knows the trace and the cold start; `utilization` is the parameter to sweep."""

    scrape_seconds = 60.0
    wakes = False
    removal = Removal.CORDON

    def __init__(
        self,
        load: LoadCurve,
        cold_start_seconds: float,
        bounds: Bounds | None = None,
        *,
        utilization: float = 0.8,
        smooth_seconds: float = 0.0,
        period_seconds: float = 1.0,
    ) -> None:
        """Take the load, and the cold start to reckon with (a high percentile, where it varies)."""
        self.name = f"oracle({utilization:g},{smooth_seconds:g}s)"
        self.period_seconds = period_seconds
        self._load, self._lead = load.smoothed(smooth_seconds), cold_start_seconds
        self._bounds, self._utilization = bounds or Bounds(low=0), utilization

    def desired(self, sample: FleetSample) -> Wanted:
        """Return the most pods that any moment from now to one cold start (and one look) later needs."""
        peak = self._load.peak(sample.at, sample.at + self._lead + self.period_seconds)
        return Wanted(self._bounds.clamp(math.ceil(peak / self._utilization - 1e-9)), "Foreseen")

    def restarted(self) -> Oracle:
        """Return itself: it needs no memory."""
        return self

    def schedule(self, times: Sequence[float]) -> list[int]:
        """Return the counts at `times`, for reports."""
        return [self.desired(FleetSample(at, 0)).replicas for at in times]
