"""`octavo bench serve`: latency under load that comes as users come, saturation, goodput under an objective."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import msgspec

from octavo_engine.bench.latency_table import latency_table
from octavo_engine.bench.load import LoadError, LoadResult, Target, Tell, drive, failures
from octavo_engine.bench.plot import Line, cumulative, lines
from octavo_engine.bench.report import Table
from octavo_engine.bench.statistics import goodput, number, percentile, percentiles
from octavo_engine.bench.workload import Item

Make = Callable[[int], list[Item]]
"""So many items of the workload, without arrivals."""


class Online(msgspec.Struct, frozen=True):
    """One run under load. Seconds; rates a second.

    A failed request counts as infinite in every percentile, and in no mean. As JSON, `"infinite"` is such a figure,
    and null is one that there was nothing to measure for (the inter-token time of answers in one message, say).
    """

    requests: int
    failed: int
    """Of `requests`; those of `health` are counted by `health_failed`."""
    first_error: str
    """Why the first of them failed; empty if none did."""
    seconds: float
    offered_rate: float
    """By the arrivals; infinite if all came at once."""
    request_rate: float
    output_rate: float
    total_rate: float
    ttft: dict[str, float]
    itl: dict[str, float]
    e2e: dict[str, float]
    slo_ttft: float
    slo_itl: float
    slo_attainment: float
    """The share of requests that kept the objective."""
    goodput: float
    """Requests a second that kept it."""
    health: dict[str, float]
    health_failed: int
    late_p99: float
    """How much later than due the load generator itself sent: what it adds to the figures."""
    client_cpu: float
    """CPU of the load generator, in shares of one core."""
    saturation: float | None = None
    """Requests a second that the server ends for clients who always want another; None if it was not sought."""


def saturation(target: Target, make: Make, clients: int, seconds: float, tell: Tell | None = None) -> float:
    """Return the requests a second that the server ends for `clients` clients who each send one after the other.

    The number of requests is chosen from a first round of one for each client, so that the measured round takes about
    `seconds`. Raises OSError, ValueError; LoadError if a request fails, for then this is no saturation.
    """
    first = asyncio.run(drive(target, make(clients), clients=clients, probe=False))
    _check(first)
    count = max(clients, round(first.request_rate * seconds))
    found = asyncio.run(drive(target, make(count), clients=clients, probe=False, tell=tell))
    _check(found)
    return found.request_rate


def _check(load: LoadResult) -> None:
    if load.failed:
        raise LoadError(failures(load))


def run(target: Target, items: Sequence[Item], tell: Tell | None = None) -> LoadResult:
    """Send the items at their arrivals, after one request that warms up. Raises OSError, ValueError."""
    asyncio.run(drive(target, [Item(tuple(reversed(items[0].prompt)), 2)], clients=1, probe=False))
    return asyncio.run(drive(target, items, tell=tell))


def summarize(
    load: LoadResult, items: Sequence[Item], slo_ttft: float, slo_itl: float, saturation: float | None = None
) -> Online:
    """Return the figures of a run."""
    outcomes = load.outcomes
    kept = goodput([(outcome.ttft, outcome.mean_itl) for outcome in outcomes], slo_ttft, slo_itl)
    last = max((item.arrival for item in items), default=0.0)
    answered = [seconds for seconds in load.health if seconds != float("inf")]
    return Online(
        requests=len(outcomes),
        failed=load.failed,
        first_error=load.first_error,
        seconds=load.seconds,
        offered_rate=(len(items) - 1) / last if last else float("inf"),
        request_rate=load.request_rate,
        output_rate=load.output_rate,
        total_rate=load.total_rate,
        ttft=percentiles([outcome.ttft for outcome in outcomes]),
        itl=percentiles([gap for outcome in outcomes for gap in outcome.itl]),
        e2e=percentiles([outcome.e2e for outcome in outcomes]),
        slo_ttft=slo_ttft,
        slo_itl=slo_itl,
        slo_attainment=kept,
        goodput=kept * len(outcomes) / load.seconds,
        health=percentiles(load.health),
        health_failed=len(load.health) - len(answered),
        late_p99=percentile([outcome.late for outcome in outcomes], 99),
        client_cpu=load.client_cpu_seconds / load.seconds,
        saturation=saturation,
    )


def table(found: Online) -> Table:
    """Return the figures as a table."""
    latencies = {"TTFT": found.ttft, "ITL": found.itl, "end to end": found.e2e, "/health": found.health}
    failed = f"{found.failed} of them failed: ∞ below" if found.failed else "none failed"
    note = (
        f"{number(found.offered_rate)} requests/s offered, {number(found.request_rate)} ended; "
        f"{number(found.output_rate)} output tok/s; goodput {number(found.goodput)} requests/s "
        f"({found.slo_attainment:.1%} kept TTFT ≤ {number(found.slo_ttft * 1e3)} ms and mean ITL ≤ "
        f"{number(found.slo_itl * 1e3)} ms); /health failed {found.health_failed} times; the load generator sent "
        f"{number(found.late_p99 * 1e3)} ms late at p99 and took {found.client_cpu:.0%} of a core"
    )
    if found.saturation:
        note += f"; saturation {number(found.saturation)} requests/s"
    title = f"{found.requests} requests in {number(found.seconds)} s, {failed}"
    return latency_table(title, latencies, note)


def plots(load: LoadResult, offered_rate: float, sentence: str) -> dict[str, str]:
    """Return SVG pictures by file name: the distributions of the latencies; `sentence` says of what they are."""
    series = [
        Line(name, cumulative([value * 1e3 for value in values]))
        for name, values in (
            ("time to first token", [outcome.ttft for outcome in load.outcomes]),
            ("inter-token", [gap for outcome in load.outcomes for gap in outcome.itl]),
            ("end to end", [outcome.e2e for outcome in load.outcomes]),
        )
    ]
    rate = f"{number(offered_rate)} a second" if math.isfinite(offered_rate) else "all at once"
    failed = f"{load.failed} failed" if load.failed else "none failed"
    title = f"Latency under load: {len(load.outcomes)} requests, {rate}, {failed}"
    return {"serve-latency.svg": lines(title, "milliseconds", "% of all", series, sentence, log_x=True)}
