"""Start everybody, warm everybody up, then let them take turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from octavo_engine.bench.peers.contender import Contender, Running
from octavo_engine.bench.peers.heartbeat import heartbeat
from octavo_engine.bench.peers.notes import FAILURES, Notes
from octavo_engine.bench.peers.point import BATCH, BATCH_SIZES, LENGTH, Point, Timing, batch_of, total_rate
from octavo_engine.bench.peers.ratio import Key
from octavo_engine.bench.peers.schedule import Group, groups, turns, with_best_batch
from octavo_engine.bench.workload import fixed

_WARM_UP_SEED: Final = 1_000_000
"""Beyond every round's."""
_WARM_UP: Final = Point("warm-up", "warm-up", lambda seed: fixed(1, 32, 8, seed), total_rate)


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
    """The contenders that started; whoever fails later is taken out, and noted."""

    def __init__(self, contenders: Sequence[Contender], notes: Notes) -> None:
        """Start them, each warmed up by one short run."""
        self._notes = notes
        self.running: dict[str, Running] = {}
        self.contenders: list[Contender] = []
        self.titles = {contender.name: contender.title for contender in contenders}
        try:
            for contender in contenders:
                self._start(contender)
        except BaseException:
            self.close()
            raise

    def _start(self, contender: Contender) -> None:
        self._notes.say(f"starting {contender.title}")
        try:
            with heartbeat(self._notes.say, lambda seconds: f"starting {contender.title}: {seconds:.0f} s"):
                running = contender.start()
        except FAILURES as error:
            self._notes.leave_out(contender.name, contender.title, error)
            return
        self.running[contender.name] = running
        self.contenders.append(contender)
        self.run(contender.name, _WARM_UP, 0)

    def run(self, name: str, point: Point, seed: int) -> Timing | None:
        """Run the point once; None if the contender is out, or now falls out."""
        if name not in self.running:
            return None
        title = f"{self.titles[name]}, {point.title}"
        try:
            with heartbeat(self._notes.say, lambda seconds: f"{title}: {seconds:.0f} s"):
                return self.running[name].run(point.make(seed))
        except FAILURES as error:
            self._notes.leave_out(name, self.titles[name], error, f"from {point.title} on")
            self.running.pop(name).close()
            return None

    def close(self) -> None:
        """End everybody."""
        while self.running:
            self.running.popitem()[1].close()


def measure(
    field: Field,
    points: Sequence[Point],
    rounds: int,
    notes: Notes,
    best_of: Sequence[str] = (),
    keep: Callable[[Measured], None] = lambda measured: None,
) -> Measured:
    """Run every group of comparable entries `rounds` times by turns.

    `best_of` names contenders whose best batch size is found first, by one run of each size. `keep` is given all that
    is known after each run: one object, which grows.
    """
    measured = Measured({}, {}, [], {c.name: c.title for c in field.contenders}, {}, {}, [])
    for plain in groups(field.contenders, points):
        group = plain
        for name in best_of:
            if (name, BATCH) in group.entries:
                group = _with_best_batch(group, name, field, measured, notes)
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
            title = measured.titles[turn.contender]
            notes.say(f"{turn.point.title}, round {turn.round + 1}/{rounds}: {title}: {rate:,.0f}")
            keep(measured)
    return measured


def _with_best_batch(group: Group, name: str, field: Field, measured: Measured, notes: Notes) -> Group:
    notes.say(f"{measured.titles[name]}: its best batch size")
    measured.batch_rates[name] = rates = _batch_rates(field, name)
    if not rates:
        return group
    measured.best_batch[name] = best = max(rates, key=rates.__getitem__)
    return with_best_batch(group, name, best)


def _batch_rates(field: Field, name: str) -> dict[int, float]:
    found = {}
    for size in BATCH_SIZES:
        run = field.run(name, Point("", f"{size} × ({LENGTH}, {LENGTH})", batch_of(size), total_rate), _WARM_UP_SEED)
        if run is not None:
            found[size] = total_rate(run)
    return found
