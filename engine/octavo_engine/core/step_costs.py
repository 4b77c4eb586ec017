"""What a step costs by the number of its tokens, learnt from the steps themselves.

With few rows a step reads the weights and waits for memory: a row more is nearly free. With many it computes, and a row
costs its share. Where the one turns into the other depends on the model, the machine and the load, so it is measured.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final

_WEIGHT: Final = 0.05
"""Of a new measurement in its bucket's mean, once there are enough for a mean."""
_STEPS_KEPT: Final = 1000
"""A bucket not met for so many steps says nothing about today's contexts."""
_LOOK_AHEAD: Final = 8
"""Tokens beyond the largest step known that are taken to be free until one such step was measured."""


def _bounds(largest: int) -> list[int]:
    bounds = [1]
    while bounds[-1] < largest:
        bounds.append(max(bounds[-1] + 1, bounds[-1] * 9 // 8))
    return bounds


class _Bucket:
    """Steps of about one size: their mean size and time, and the step that was measured last."""

    __slots__ = ("count", "seconds", "seen", "tokens")

    def __init__(self) -> None:
        self.count, self.seen = 0, 0
        self.tokens = self.seconds = 0.0


class StepCosts:
    """Seconds of a step as a function of its tokens: bucket means, never falling, straight lines between them."""

    def __init__(self, largest: int = 8192) -> None:
        self._bounds = _bounds(largest)
        self._buckets: dict[int, _Bucket] = {}
        self._steps = 0
        self._curve: list[tuple[float, float]] = []
        self._known: dict[int, float] = {}

    def observe(self, tokens: int, seconds: float) -> None:
        """Take one step's time in."""
        self._steps += 1
        bucket = self._buckets.setdefault(bisect_right(self._bounds, tokens), _Bucket())
        if self._steps - bucket.seen > _STEPS_KEPT:
            bucket.count = 0
        bucket.count += 1
        bucket.seen = self._steps
        weight = max(_WEIGHT, 1 / bucket.count)
        bucket.tokens += weight * (tokens - bucket.tokens)
        bucket.seconds += weight * (seconds - bucket.seconds)
        self._known.clear()
        self._curve = []

    def seconds(self, tokens: int) -> float:
        """Return what a step of `tokens` is expected to take; 0 while nothing is known."""
        known = self._known.get(tokens)
        if known is None:
            known = self._known[tokens] = self._interpolate(float(tokens))
        return known

    def _interpolate(self, tokens: float) -> float:
        curve = self._curve or self._fit()
        if not curve:
            return 0.0
        if tokens <= curve[0][0]:
            return curve[0][1]
        for (left, low), (right, high) in pairwise(curve):
            if tokens <= right:
                return low + (high - low) * (tokens - left) / (right - left)
        largest, seconds = curve[-1]
        free = min(tokens - largest, _LOOK_AHEAD)
        return seconds * max(1.0, (tokens - free) / largest)

    def _fit(self) -> list[tuple[float, float]]:
        """Return the points of the curve: neighbours that contradict each other are pooled (isotonic regression)."""
        points: list[tuple[float, float, float]] = []
        for _, bucket in sorted(self._buckets.items()):
            if self._steps - bucket.seen > _STEPS_KEPT:
                continue
            weight, tokens, seconds = float(min(bucket.count, 1 / _WEIGHT)), bucket.tokens, bucket.seconds
            while points and points[-1][2] >= seconds:
                other, other_tokens, other_seconds = points.pop()
                total = weight + other
                tokens = (weight * tokens + other * other_tokens) / total
                seconds = (weight * seconds + other * other_seconds) / total
                weight = total
            points.append((weight, tokens, seconds))
        self._curve = [(tokens, seconds) for _, tokens, seconds in points]
        return self._curve
