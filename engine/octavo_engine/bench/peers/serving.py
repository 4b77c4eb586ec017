"""Latency under load, server against server: the same arrivals at 70 % of each peer's own saturation and of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, NamedTuple

import msgspec

from octavo_engine.bench.load import Target
from octavo_engine.bench.online import Online, run, saturation, summarize
from octavo_engine.bench.peers.heartbeat import Requests, Say, heartbeat
from octavo_engine.bench.peers.notes import FAILURES, OWN, Notes
from octavo_engine.bench.report import Table
from octavo_engine.bench.statistics import number
from octavo_engine.bench.workload import mixed, poisson

SHARE: Final = 0.7
CLIENTS: Final = 64
SLO_TTFT: Final = 1.0
SLO_ITL: Final = 0.1
SERVED: Final = "of the servers"


class Served(NamedTuple):
    """A server that can be started again and again."""

    name: str
    title: str
    start: Callable[[], AbstractContextManager[Target]]


class UnderLoad(msgspec.Struct, frozen=True):
    """One server at one rate. `rate_of` names whose saturation the rate is a share of."""

    server: str
    rate_of: str
    rate: float
    found: Online


class Serving(msgspec.Struct, frozen=True):
    """All runs so far. Saturations in requests a second, by server; `titles` by server."""

    titles: dict[str, str]
    saturations: dict[str, float]
    runs: list[UnderLoad]


def plan(saturations: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return (server, whose rate) in the order of the runs: at each peer's rate it and we, at ours everybody."""
    if OWN not in saturations:
        return []
    peers = [name for name in saturations if name != OWN]
    pairs = [(server, peer) for peer in peers for server in (peer, OWN)]
    return [*pairs, *((server, OWN) for server in (*peers, OWN))]


def measure(
    servers: Sequence[Served],
    seconds: float,
    saturation_seconds: float,
    notes: Notes,
    keep: Callable[[Serving], None] = lambda serving: None,
) -> Serving:
    """Find everybody's saturation, then run the plan: `seconds` of arrivals a run, one server up at a time.

    Whoever fails is left out: of everything if its saturation could not be found, else of that run. `keep` is given all
    that is known after each of them: one object, which grows.
    """
    known = {server.name: server for server in servers}
    found = Serving({}, {}, [])
    for server in servers:
        rate = _saturation(server, saturation_seconds, notes)
        if rate is not None:
            found.titles[server.name], found.saturations[server.name] = server.title, rate
            keep(found)
        elif server.name == OWN:
            return found
    for name, rate_of in plan(found.saturations):
        run = _under_load(known[name], known[rate_of], found.saturations, seconds, notes)
        if run is not None:
            found.runs.append(run)
            keep(found)
    return found


def _saturation(server: Served, seconds: float, notes: Notes) -> float | None:
    """Return what the server can do, None if it fails."""
    title = f"saturation of {server.title}"
    notes.say(title)
    try:
        with _told(notes.say, title) as tell, server.start() as target:
            rate = saturation(target, lambda count: mixed(count, seed=1), CLIENTS, seconds, tell)
    except FAILURES as error:
        notes.leave_out(server.name, server.title, error, SERVED)
        return None
    notes.say(f"{server.title} ends {rate:.2f} requests a second")
    return rate


def _under_load(
    server: Served, rate_of: Served, saturations: Mapping[str, float], seconds: float, notes: Notes
) -> UnderLoad | None:
    """Return one run of the plan, None if the server fails in it."""
    rate = SHARE * saturations[rate_of.name]
    # The same seed at the same rate: everybody gets the same requests at the same instants.
    items = poisson(mixed(max(1, round(rate * seconds)), seed=2), rate)
    at = f"at {rate:.2f} requests a second"
    notes.say(f"{server.title} {at}, {SHARE:.0%} of what {rate_of.title} can")
    try:
        with _told(notes.say, f"{server.title} {at}") as tell, server.start() as target:
            load = run(target, items, tell)
    except FAILURES as error:
        notes.leave_out(server.name, server.title, error, f"of the run {at}")
        return None
    summary = summarize(load, items, SLO_TTFT, SLO_ITL, saturations[server.name])
    return UnderLoad(server.name, rate_of.name, rate, summary)


@contextmanager
def _told(say: Say, title: str) -> Iterator[Requests]:
    """Tell every few seconds how many requests have ended; what it yields is to be told that."""
    requests = Requests(title)
    with heartbeat(say, requests.line):
        yield requests


def table(found: Serving) -> Table:
    """Return the latencies at each rate."""
    rows = [
        (
            found.titles[run.server],
            f"{number(run.rate)} = {SHARE:.0%} of {found.titles[run.rate_of]}",
            _pair(run.found.ttft),
            _pair(run.found.itl),
            number(run.found.health["p99"] * 1e3),
            number(run.found.output_rate),
            str(run.found.failed),
        )
        for run in found.runs
    ]
    saturations = ", ".join(f"{found.titles[name]} {number(rate)}" for name, rate in found.saturations.items())
    return Table(
        "served over HTTP, mixed workload, Poisson arrivals",
        ("", "requests/s", "TTFT p50 / p99, ms", "ITL p50 / p99, ms", "/health p99, ms", "output tok/s", "failed"),
        rows,
        f"saturation with {CLIENTS} clients, requests/s: {saturations}",
    )


def _pair(values: Mapping[str, float]) -> str:
    return f"{number(values['p50'] * 1e3)} / {number(values['p99'] * 1e3)}"
