"""What an attainment costs: the curve of a swept policy, and one curve against another. Pure.

GPU-hours |            x    Points that another one beats in both are left out; between the rest the cost is
          |        o  .     linear. A cheaper point always also gives any lower attainment, so the curve is flat
          |    ___o         to the left of its cheapest point, and ends at its best attainment.
          +---------------- attainment
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

LEVELS: Final = (0.90, 0.92, 0.94, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995)
"""The attainments at which curves are compared."""


class Mark(NamedTuple):
    """One point of a curve: attainment from 0 to 1, and GPU-hours."""

    attainment: float
    gpu_hours: float


def frontier(marks: Iterable[Mark]) -> list[Mark]:
    """Return the marks that no other one beats in both, by ascending attainment and cost."""
    kept: list[Mark] = []
    for mark in sorted(marks, key=lambda mark: (-mark.attainment, mark.gpu_hours)):
        if not kept or mark.gpu_hours < kept[-1].gpu_hours:
            kept.append(mark)
    return kept[::-1]


def cost_at(curve: Sequence[Mark], attainment: float) -> float:
    """Return the GPU-hours that a frontier takes for an attainment; infinite where it never gets there."""
    for index, mark in enumerate(curve):
        if mark.attainment >= attainment - 1e-12:
            if index == 0:
                return mark.gpu_hours
            former = curve[index - 1]
            share = (attainment - former.attainment) / (mark.attainment - former.attainment)
            return former.gpu_hours + share * (mark.gpu_hours - former.gpu_hours)
    return math.inf


class Comparison(NamedTuple):
    """Ours over another's curve. `ratios`: our cost / theirs by level; a level that neither reaches is left out.

    Infinite where only they get there, 0 where only we do.
    """

    policy: str
    ratios: dict[float, float]

    @property
    def worst(self) -> float:
        """Return the highest ratio; 0 if they reach no level."""
        return max(self.ratios.values(), default=0.0)

    @property
    def worst_level(self) -> float | None:
        """Return where it is."""
        return max(self.ratios, key=lambda level: self.ratios[level], default=None)


def compare(ours: Sequence[Mark], policy: str, theirs: Sequence[Mark], levels: Sequence[float] = LEVELS) -> Comparison:
    """Return our frontier against the one of `policy`."""
    ratios = {}
    for level in levels:
        our_cost, their_cost = cost_at(ours, level), cost_at(theirs, level)
        if math.isinf(our_cost) and math.isinf(their_cost):
            continue
        ratios[level] = 0.0 if math.isinf(their_cost) else our_cost / their_cost
    return Comparison(policy, ratios)


def dominated(mark: Mark, other: Mark) -> bool:
    """Say whether `other` is at least as good in both and better in one."""
    as_good = other.attainment >= mark.attainment and other.gpu_hours <= mark.gpu_hours
    return as_good and other != mark
