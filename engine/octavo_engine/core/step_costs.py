"""What a step costs by the number of its tokens, learnt from the steps themselves.

With few rows a step reads the weights and waits for memory: a row more is nearly free. With many it computes, and a row
costs its share. Where the one turns into the other depends on the model, the machine and the load, so it is measured:
around any number of tokens the times of steps of about that size give a straight line (least squares).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

_MEMORY: Final = 100.0
"""Steps of about one size that count: older ones fade."""
_STEPS_KEPT: Final = 2000
"""Sizes not met for so many steps say nothing about today's contexts."""
_REACH: Final = 1.6
"""Steps up to so many times larger or smaller lie on the same line, and those that differ by up to _NEAR tokens."""
_NEAR: Final = 8
_DOUBT: Final = 10.0
"""Measurements, a quarter of the size apart, that weigh as much as the presumption that every token costs the same."""


class Line(NamedTuple):
    """Seconds of a step of about `tokens`, and of each token more."""

    tokens: float
    seconds: float
    slope: float


class _Sums:
    """Of the steps of about one size: weights, tokens, seconds, and their products."""

    __slots__ = ("product", "seconds", "seen", "square", "tokens", "weight")

    def __init__(self) -> None:
        self.seen = 0
        self.weight = self.tokens = self.seconds = self.square = self.product = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        keep = 1.0 if self.weight < _MEMORY else 1 - 1 / _MEMORY
        self.weight = self.weight * keep + 1
        self.tokens = self.tokens * keep + tokens
        self.seconds = self.seconds * keep + seconds
        self.square = self.square * keep + tokens * tokens
        self.product = self.product * keep + tokens * seconds


def _bounds(largest: int) -> list[int]:
    bounds = [1]
    while bounds[-1] < largest:
        bounds.append(max(bounds[-1] + 1, bounds[-1] * 9 // 8))
    return bounds


class StepCosts:
    """Lines through what was measured, one for each number of tokens that is asked about."""

    def __init__(self, largest: int = 8192) -> None:
        self._bounds = _bounds(largest)
        self._sums: dict[int, _Sums] = {}
        self._steps = 0
        self._lines: dict[int, Line | None] = {}

    def observe(self, tokens: int, seconds: float) -> None:
        """Take one step's time in."""
        self._steps += 1
        place = bisect_right(self._bounds, tokens)
        sums = self._sums.get(place)
        if sums is None or self._steps - sums.seen > _STEPS_KEPT:
            sums = self._sums[place] = _Sums()
        sums.add(tokens, seconds)
        sums.seen = self._steps
        self._lines.clear()

    def line(self, tokens: int) -> Line | None:
        """Return the line around steps of `tokens`; None while none of about that size is known."""
        if tokens not in self._lines:
            self._lines[tokens] = self._fit(tokens)
        return self._lines[tokens]

    def seconds(self, tokens: int) -> float:
        """Return what a step of `tokens` is expected to take; 0 while nothing of about that size is known."""
        line = self.line(tokens)
        return 0.0 if line is None else line.seconds + line.slope * (tokens - line.tokens)

    def slope(self, tokens: int) -> float:
        """Return what a token more costs a step of `tokens`; infinite while nothing is known."""
        line = self.line(tokens)
        return float("inf") if line is None else line.slope

    def _fit(self, tokens: int) -> Line | None:
        first = bisect_right(self._bounds, min(int(tokens / _REACH), tokens - _NEAR))
        last = bisect_right(self._bounds, max(int(tokens * _REACH), tokens + _NEAR))
        near = [
            sums
            for place in range(first, last + 1)
            if (sums := self._sums.get(place)) is not None and self._steps - sums.seen <= _STEPS_KEPT
        ]
        if not near:
            return None
        weight = sum(sums.weight for sums in near)
        mean, seconds = sum(sums.tokens for sums in near) / weight, sum(sums.seconds for sums in near) / weight
        spread = max(0.0, sum(sums.square for sums in near) - weight * mean * mean)
        together = sum(sums.product for sums in near) - weight * mean * seconds
        doubt = _DOUBT * max(1.0, mean / 4) ** 2
        share = seconds / mean
        return Line(mean, seconds, min(share, max(0.0, (together + doubt * share) / (spread + doubt))))
