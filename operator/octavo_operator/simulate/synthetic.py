"""Made-up traces: a day's wave, a step, a flash crowd. The same seed gives the same requests everywhere.

Arrivals are Poisson with a rate that changes over time (by thinning); lengths are log-normal, with medians and spreads
near those of the Azure 2023 conversation trace (mean prompt 1,155 and answer 211 tokens).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

from .trace import Request, Trace

MAX_PROMPT: Final = 8000
MAX_OUTPUT: Final = 1000


def diurnal(seed: int = 0, seconds: float = 7200.0, low: float = 1.0, high: float = 8.0, day: float = 3600.0) -> Trace:
    """Return waves between `low` and `high` requests a second, each `day` seconds long, beginning at the lowest."""

    def rate(at: float) -> float:
        return low + (high - low) * (1 - math.cos(2 * math.pi * at / day)) / 2

    return _poisson(f"diurnal-{seed}", seed, seconds, rate, high)


def step(seed: int = 0, seconds: float = 3600.0, low: float = 1.5, high: float = 7.5) -> Trace:
    """Return a rate of `low` that jumps to `high` at a third of the time and back at two thirds."""

    def rate(at: float) -> float:
        return high if seconds / 3 <= at < 2 * seconds / 3 else low

    return _poisson(f"step-{seed}", seed, seconds, rate, high)


def crowd(seed: int = 0, seconds: float = 3600.0, low: float = 1.0, factor: float = 10.0) -> Trace:
    """Return a steady `low` and a flash crowd of `factor` times that: up within 30 s, gone again with a half-life."""
    begins, rise, half_life = seconds / 3, 30.0, seconds / 12

    def rate(at: float) -> float:
        if at < begins:
            return low
        if at < begins + rise:
            return low + low * (factor - 1) * (at - begins) / rise
        return low + low * (factor - 1) * math.exp2((begins + rise - at) / half_life)

    return _poisson(f"crowd-{seed}", seed, seconds, rate, low * factor)


def steady(seed: int = 0, seconds: float = 3600.0, rate: float = 3.0) -> Trace:
    """Return a constant rate."""
    return _poisson(f"steady-{seed}", seed, seconds, lambda _: rate, rate)


def long_night(seed: int = 0, seconds: float = 5400.0) -> Trace:
    """Return twenty minutes of work, a night of streams that each outlast every window, and half an hour of work."""
    rng = random.Random(f"night {seed}")
    day, morning, evening = steady(seed), 1200.0, 1800.0
    # Some 16,000 steps of 20 ms each: longer than the idle time and the shrinking window.
    count = int((seconds - morning - evening) / 180)
    night = [Request(morning + 180 * index + rng.random(), 300, 15_500) for index in range(count)]
    work = [request for request in day.requests if request.at < morning]
    again = [request._replace(at=request.at + seconds - evening) for request in day.requests if request.at < evening]
    requests = sorted([*work, *night, *again], key=lambda request: request.at)
    return Trace(f"long-night-{seed}", tuple(requests), seconds)


SYNTHETIC: Final[dict[str, Callable[[int], Trace]]] = {
    "diurnal": diurnal,
    "step": step,
    "crowd": crowd,
    "steady": steady,
    "long-night": long_night,
}
"""By the name that the command line takes; each wants a seed."""


def _poisson(name: str, seed: int, seconds: float, rate: Callable[[float], float], peak: float) -> Trace:
    rng = random.Random(f"{name.partition('-')[0]} {seed}")
    requests, at = [], rng.expovariate(peak)
    while at < seconds:
        if rng.random() * peak < rate(at):
            requests.append(Request(at, _length(rng, 770, 0.9, MAX_PROMPT), _length(rng, 160, 0.75, MAX_OUTPUT)))
        at += rng.expovariate(peak)
    return Trace(name, tuple(requests), seconds)


def _length(rng: random.Random, median: int, sigma: float, most: int) -> int:
    return max(2, min(most, round(rng.lognormvariate(math.log(median), sigma))))
