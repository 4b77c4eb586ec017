"""Windows over what was seen before: the little of a metrics store that the baselines ask for. Pure.

Increases, quantiles and staleness follow Prometheus: a series whose last scrape failed has no value, an increase needs
two scrapes within its window, a quantile is interpolated inside its bucket and is never above the last bound.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from octavo_operator.simulate.policy import Buckets, FleetSample, PodMetrics

LOST_AFTER_PERIODS = 1.5
"""A sample older than this many scrape periods is one whose successor was lost."""


class Window:
    """The values of one number over the last `seconds`, each with its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._points: deque[tuple[float, float]] = deque()

    def add(self, at: float, value: float) -> None:
        """Take a value in, and forget those that left the window; one at the same time replaces the former."""
        if self._points and self._points[-1][0] == at:
            self._points.pop()
        self._points.append((at, value))
        while at - self._points[0][0] >= self.seconds:
            self._points.popleft()

    def values(self, now: float, seconds: float | None = None) -> list[float]:
        """Return the values younger than `seconds` (the whole window, if not given), oldest first."""
        limit = self.seconds if seconds is None else seconds
        return [value for at, value in self._points if now - at < limit]

    def mean(self, now: float, seconds: float | None = None) -> float | None:
        """Return the mean of those values, or None if there are none."""
        values = self.values(now, seconds)
        return sum(values) / len(values) if values else None


class Scrapes:
    """Every pod's answered scrapes of the last `seconds`, ghosts' too, in the order of their time."""

    def __init__(self, seconds: float, scrape_seconds: float) -> None:
        self.seconds = seconds
        self._max_age = scrape_seconds * LOST_AFTER_PERIODS
        self._series: dict[str, deque[PodMetrics]] = {}

    def add(self, sample: FleetSample) -> None:
        """Take in what is new, and forget what has left the window."""
        for pod in sample.pods:
            if pod.metrics is not None:
                series = self._series.setdefault(pod.pod.uid, deque())
                if not series or pod.metrics.at > series[-1].at:
                    series.append(pod.metrics)
        for uid, series in list(self._series.items()):
            while series and sample.at - series[0].at > self.seconds:
                series.popleft()
            if not series:
                del self._series[uid]

    def current(self, sample: FleetSample) -> dict[str, PodMetrics]:
        """Return what an instant query finds: the last scrape of each pod whose last scrape was answered."""
        return {pod.pod.uid: metrics for pod in sample.pods if (metrics := pod.reported(self._max_age)) is not None}

    def peak(self, uid: str, now: float, seconds: float, value: Callable[[PodMetrics], float]) -> float | None:
        """Return `max_over_time` of a pod's gauge, or None without any scrape in that time."""
        return max((value(scrape) for scrape in self._within(uid, now, seconds)), default=None)

    def seen(self, now: float, seconds: float) -> list[str]:
        """Return the pods with at least one scrape in that time."""
        return [uid for uid in self._series if self._within(uid, now, seconds)]

    def increase(self, now: float, seconds: float, counter: Callable[[PodMetrics], float]) -> float:
        """Return how much a counter rose on all pods together between their first and last scrape in that time."""
        total = 0.0
        for uid in self._series:
            run = self._within(uid, now, seconds)
            total += sum(max(0.0, counter(later) - counter(former)) for former, later in pairwise(run))
        return total

    def quantile(self, q: float, now: float, seconds: float, of: Callable[[PodMetrics], Buckets]) -> float:
        """Return the q-quantile of what all pods observed in that time, in seconds; NaN if they observed nothing."""
        totals: list[int] = []
        bounds: tuple[float, ...] = ()
        for uid in self._series:
            run = self._within(uid, now, seconds)
            if len(run) < 2:
                continue
            first, last = of(run[0]), of(run[-1])
            bounds = last.bounds
            rise = [after - before for before, after in zip(first.counts, last.counts, strict=True)]
            totals = rise if not totals else [x + y for x, y in zip(totals, rise, strict=True)]
        return quantile(q, bounds, totals)

    def _within(self, uid: str, now: float, seconds: float) -> list[PodMetrics]:
        return [scrape for scrape in self._series.get(uid, ()) if now - scrape.at <= seconds]


def quantile(q: float, bounds: Sequence[float], counts: Sequence[int]) -> float:
    """Return the q-quantile of cumulative counts (one more than bounds), linear inside a bucket; NaN if empty."""
    if not counts or counts[-1] == 0:
        return math.nan
    rank = q * counts[-1]
    lower, below = 0.0, 0
    for bound, count in zip(bounds, counts, strict=False):
        if count >= rank:
            return lower + (bound - lower) * (rank - below) / max(1, count - below)
        lower, below = bound, count
    return bounds[-1]


def line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return (intercept, slope) of the least-squares line; the slope of points on one abscissa is 0."""
    xs, ys = zip(*points, strict=True)
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
    return mean_y - slope * mean_x, slope
