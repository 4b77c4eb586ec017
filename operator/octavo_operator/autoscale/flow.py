"""How much works at once if nobody has to wait: from the flow of requests, not from the length of the queue. Pure.

A queue that stands grows for as long as pods are missing. Its length says how long that was, not how many are missing:
while pods start for five minutes it grows to many times what one moment needs. What says it is the flow (Little's law):

    requests at work  =  arrivals/s x seconds that a request works
    arrivals/s        =  requests finished/s + growth of the requests in flight/s
    seconds of work   =  mean requests running / requests finished/s

and the backlog adds what clears it soon: the backlog that a pod asked for now will meet when it is ready, with the pods
counted that start already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final, NamedTuple

from .types import Estimate, PodSample, Scrape

WORK_WINDOW_SECONDS: Final = 120.0
"""Seconds of work are a property of the traffic: a mean over many requests."""
ARRIVAL_WINDOW_SECONDS: Final = 30.0
"""Arrivals are what changes: three scrape periods."""
FINISHED_MIN: Final = 10
"""Fewer finished requests than this are no rate."""
CLEAR_SHARE: Final = 0.25
"""A backlog is cleared within this share of a cold start. Of 0.08 … 2 it kept the most requests for its GPU time, over
a step, a flash crowd and a day, with starts of 30, 120 and 300 s."""
CLEAR_MIN_SECONDS: Final = 20.0
"""Two scrape periods: sooner would not be seen."""


class Flow(NamedTuple):
    """Rates in requests a second; `seconds` that a request works."""

    arrivals: float
    finished: float
    seconds: float


class _Passed(NamedTuple):
    """What one pod did within a window."""

    finished: float
    seconds: float
    running: float
    more: int


def measure(
    recent: Sequence[Mapping[str, Scrape]], samples: Mapping[str, PodSample], points: Sequence[Estimate], now: Estimate
) -> Flow | None:
    """Return the flow of requests now, or None if too little was seen of it.

    `recent`: the scrapes of the last periods, oldest first; `samples`: the last valid ones of the pods that are there;
    `points`: the estimates of those periods; `now`: this period's, with its counts of requests.
    """
    long = _passed(recent, samples, now.at - WORK_WINDOW_SECONDS)
    # Those that began and did not end are half a flow: else work would seem long whenever the load rises.
    rate = sum((pod.finished + pod.more / 2) / pod.seconds for pod in long)
    if sum(pod.finished for pod in long) < FINISHED_MIN or rate <= 0:
        return None
    running = sum(pod.running for pod in long)
    short = _passed(recent, samples, now.at - ARRIVAL_WINDOW_SECONDS)
    finished = sum(pod.finished / pod.seconds for pod in short)
    earlier = next((point for point in points if now.at - point.at <= ARRIVAL_WINDOW_SECONDS and point.complete), None)
    if earlier is None or not now.complete or earlier.at >= now.at:
        return None
    more = (now.requests - earlier.requests) / (now.at - earlier.at)
    return Flow(max(0.0, finished + more), finished, running / rate)


def at_work(flow: Flow) -> float:
    """Return the requests that work at once if nobody waits."""
    return flow.arrivals * flow.seconds


def to_clear(flow: Flow, now: Estimate, *, pod_requests: float, starts: Sequence[float], cold_start: float) -> float:
    """Return how many more must work at once to clear the backlog that a new pod will meet.

    `pod_requests`: how many one pod works on; `starts`: when each starting pod will be ready, in seconds from now.
    """
    more = (flow.arrivals - flow.finished) * cold_start
    coming = sum(max(0.0, cold_start - start) for start in starts) * pod_requests / flow.seconds
    backlog = max(0.0, now.waiting_requests + more - coming)
    return backlog * flow.seconds / max(CLEAR_SHARE * cold_start, CLEAR_MIN_SECONDS)


def _passed(recent: Sequence[Mapping[str, Scrape]], samples: Mapping[str, PodSample], since: float) -> list[_Passed]:
    found = []
    for uid, last in samples.items():
        seen = [
            scrape for scrapes in recent if isinstance(scrape := scrapes.get(uid), PodSample) and scrape.at < last.at
        ]
        run = [one for one in (*seen, last) if one.at >= since and one.finished is not None and one.complete]
        if len(run) < 2 or run[-1] is not last:
            continue
        # A counter that fell was reset: its container began anew.
        counts = [one.finished for one in run if one.finished is not None]
        finished = sum(later - former if later >= former else later for former, later in pairwise(counts))
        running = [one.queue.running for one in run if one.queue]
        found.append(_Passed(finished, last.at - run[0].at, fmean(running), running[-1] - running[0]))
    return found
