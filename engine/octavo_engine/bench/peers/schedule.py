"""Who runs what and when: by turns, so that a machine that slows down slows everybody down. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from octavo_engine.bench.peers.contender import Contender
from octavo_engine.bench.peers.point import BATCH, LARGEST_BATCH, LENGTH, Point, batch_of, total_rate

BEST_BATCH = "best-batch"
"""The name of the point at a peer's best batch size."""


class Turn(NamedTuple):
    """One run."""

    round: int
    contender: str
    point: Point


class Group(NamedTuple):
    """What is compared with each other: one point, or with a contender's own batch size a second one."""

    title: str
    entries: tuple[tuple[str, Point], ...]


def groups(contenders: Sequence[Contender], points: Sequence[Point]) -> list[Group]:
    """Return one group a point, of those who can be measured there and have somebody to be compared with."""
    found = []
    for point in points:
        entries = tuple((contender.name, point) for contender in contenders if point.name in contender.points)
        if len(entries) > 1:
            found.append(Group(point.title, entries))
    return found


def with_best_batch(group: Group, contender: str, size: int) -> Group:
    """Return the group with a further entry: this contender at its best batch size, if that is another one."""
    if size == LARGEST_BATCH or all(name != contender or point.name != BATCH.name for name, point in group.entries):
        return group
    best = Point(BEST_BATCH, f"{size} × ({LENGTH} in, {LENGTH} out)", batch_of(size), total_rate)
    return group._replace(entries=(*group.entries, (contender, best)))


def turns(group: Group, rounds: int) -> Iterator[Turn]:
    """Yield the runs: A B C, A B C, …"""
    for index in range(rounds):
        for contender, point in group.entries:
            yield Turn(index, contender, point)
