"""The points that everybody is measured at, and how a run becomes a figure. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from octavo_engine.bench.workload import Item, fixed, mixed

LARGEST_BATCH: Final = 64
BATCH_SIZES: Final = (1, 2, 4, 8, 16, 32, LARGEST_BATCH)
LENGTH: Final = 128
PREFILL: Final = 512


class Timing(msgspec.Struct, frozen=True):
    """One run. Seconds since everything was submitted; None where a peer does not tell its first token."""

    seconds: float
    prompt_tokens: int
    output_tokens: int
    decode_tokens: int
    """Computed after the first token."""
    first_token_seconds: float | None = None


class Point(NamedTuple):
    """A workload and the rate read from it, in tokens a second."""

    name: str
    title: str
    make: Callable[[int], list[Item]]
    """From a round's number: a round repeats no prompt of another, so that no prefix cache helps."""
    rate: Callable[[Timing], float]


def total_rate(run: Timing) -> float:
    """Prompt and output tokens a second."""
    return (run.prompt_tokens + run.output_tokens) / run.seconds


def decode_rate(run: Timing) -> float:
    """Tokens a second after the first one."""
    return run.decode_tokens / (run.seconds - _first(run))


def prefill_rate(run: Timing) -> float:
    """Prompt tokens a second until the first output token."""
    return run.prompt_tokens / _first(run)


def _first(run: Timing) -> float:
    if run.first_token_seconds is None:
        raise ValueError("a run that does not tell its first token has no such rate")
    return run.first_token_seconds


def batch_of(size: int) -> Callable[[int], list[Item]]:
    """Return what makes `size` requests of 128 tokens in and out."""
    return lambda seed: fixed(size, LENGTH, LENGTH, seed)


MIXED: Final = Point("mixed", "mixed workload, 64 requests", lambda seed: mixed(64, seed), total_rate)
BATCH: Final = Point("batch", "64 × (128 in, 128 out)", batch_of(LARGEST_BATCH), total_rate)
DECODE: Final = Point("decode", "one stream (128, 128), decode", batch_of(1), decode_rate)
PREFILL_512: Final = Point("prefill", "prefill of 512", lambda seed: fixed(1, PREFILL, 2, seed), prefill_rate)
POINTS: Final = (MIXED, BATCH, DECODE, PREFILL_512)
