"""Latency under load, server against server: the same arrivals at 70 % of each peer's own saturation and of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

import msgspec

from octavo_engine.bench.load import Target
from octavo_engine.bench.online import Online, run, saturation, summarize
from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.peers.heartbeat import Say
from octavo_engine.bench.report import Table
from octavo_engine.bench.statistics import number
from octavo_engine.bench.workload import mixed, poisson

SHARE: Final = 0.7
CLIENTS: Final = 64
OWN: Final = "octavo"
SLO_TTFT: Final = 1.0
SLO_ITL: Final = 0.1


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
    """All runs. Saturations in requests a second, by server; `titles` by server."""

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


def measure(servers: Sequence[Served], seconds: float, saturation_seconds: float, say: Say) -> Serving:
    """Find everybody's saturation, then run the plan: `seconds` of arrivals a run, one server up at a time.

    A peer that does not start, or fails while its saturation is looked for, is left out with a sentence; ours raises.
    """
    known = {server.name: server for server in servers}
    found: dict[str, float] = {}
    for server in servers:
        say(f"saturation of {server.title}")
        try:
            with server.start() as target:
                found[server.name] = saturation(target, lambda n: mixed(n, seed=1), CLIENTS, saturation_seconds)
        except (PeerError, OSError, RuntimeError) as error:
            if server.name == OWN:
                raise
            say(f"{server.title} is left out: {error}")
            continue
        say(f"{server.title} ends {found[server.name]:.2f} requests a second")
    runs = []
    for name, rate_of in plan(found):
        rate = SHARE * found[rate_of]
        count = max(1, round(rate * seconds))
        # The same seed at the same rate: everybody gets the same requests at the same instants.
        items = poisson(mixed(count, seed=2), rate)
        say(f"{known[name].title} at {rate:.2f} requests a second, {SHARE:.0%} of what {known[rate_of].title} can")
        try:
            with known[name].start() as target:
                load = run(target, items)
        except PeerError as error:
            say(f"{known[name].title} is left out of this run: {error}")
            continue
        runs.append(UnderLoad(name, rate_of, rate, summarize(load, items, SLO_TTFT, SLO_ITL, found[name])))
    return Serving({name: known[name].title for name in found}, found, runs)


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
