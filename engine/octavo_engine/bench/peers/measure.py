"""Start everybody, warm everybody up, then let them take turns."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from octavo_engine.bench.peers.contender import Contender, Running
from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.peers.heartbeat import Say
from octavo_engine.bench.peers.point import BATCH, BATCH_SIZES, LENGTH, Point, Timing, batch_of, total_rate
from octavo_engine.bench.peers.ratio import Key
from octavo_engine.bench.peers.schedule import Group, groups, turns, with_best_batch
from octavo_engine.bench.workload import fixed

_WARM_UP_SEED = 1_000_000
"""Beyond every round's."""


class Measured(msgspec.Struct):
    """All runs. `figures` in tokens a second, one a round; `loads` the machine's load average before each."""

    figures: dict[Key, list[float]]
    timings: dict[Key, list[Timing]]
    loads: list[float]
    titles: dict[str, str]
    best_batch: dict[str, int]
    batch_rates: dict[str, dict[int, float]]
    """tok/s by batch size in one run each, of those whose best size was looked for."""
    groups: list[Group]


class Field:
    """The contenders that started; whoever fails later is taken out, and said."""

    def __init__(self, contenders: Sequence[Contender], say: Say) -> None:
        """Start them, each warmed up by one short run."""
        self._say = say
        self.running: dict[str, Running] = {}
        self.contenders: list[Contender] = []
        for contender in contenders:
            say(f"starting {contender.title}")
            try:
                running = contender.start()
            except PeerError as error:
                say(f"{contender.title} is left out: {error}")
                continue
            self.running[contender.name] = running
            self.contenders.append(contender)
            self.run(contender.name, Point("warm-up", "", lambda seed: fixed(1, 32, 8, seed), total_rate), 0)

    def run(self, name: str, point: Point, seed: int) -> Timing | None:
        """Run the point once; None if the contender is out, or now falls out."""
        if name not in self.running:
            return None
        try:
            return self.running[name].run(point.make(seed))
        except PeerError as error:
            self._say(f"{name} is left out from here on: {error}")
            self.running.pop(name).close()
            return None

    def close(self) -> None:
        """End everybody."""
        while self.running:
            self.running.popitem()[1].close()


def measure(field: Field, points: Sequence[Point], rounds: int, say: Say, best_of: Sequence[str] = ()) -> Measured:
    """Run every group of comparable entries `rounds` times by turns.

    `best_of` names contenders whose best batch size is found first, by one run of each size.
    """
    measured = Measured({}, {}, [], {c.name: c.title for c in field.contenders}, {}, {}, [])
    for plain in groups(field.contenders, points):
        group = plain
        for name in best_of:
            if (name, BATCH) in group.entries:
                say(f"{measured.titles[name]}: its best batch size")
                measured.batch_rates[name] = rates = _batch_rates(field, name)
                if rates:
                    measured.best_batch[name] = best = max(rates, key=rates.__getitem__)
                    group = with_best_batch(group, name, best)
        measured.groups.append(group)
        # Each entry once before the first round: threads, allocators and caches are then as they stay.
        for name, point in group.entries:
            field.run(name, point, _WARM_UP_SEED)
        for turn in turns(group, rounds):
            measured.loads.append(os.getloadavg()[0])
            run = field.run(turn.contender, turn.point, turn.round)
            if run is None:
                continue
            key, rate = (turn.point.name, turn.contender), turn.point.rate(run)
            measured.figures.setdefault(key, []).append(rate)
            measured.timings.setdefault(key, []).append(run)
            say(f"{turn.point.title}, round {turn.round + 1}/{rounds}: {measured.titles[turn.contender]}: {rate:,.0f}")
    return measured


def _batch_rates(field: Field, name: str) -> dict[int, float]:
    found = {}
    for size in BATCH_SIZES:
        run = field.run(name, Point("", f"{size} × ({LENGTH}, {LENGTH})", batch_of(size), total_rate), _WARM_UP_SEED)
        if run is not None:
            found[size] = total_rate(run)
    return found
