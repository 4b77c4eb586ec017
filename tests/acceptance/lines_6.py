"""Acceptance lines of the GPU engine, each figure beside its goal. What needs no GPU is run where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from octavo_engine.bench.workload import Item

from . import host_tier
from .figures import Figure

VOCABULARY: Final = 131
TRACE_REQUESTS: Final = 500
MOST_RECOMPUTED: Final = 0.25


class Settings(NamedTuple):
    """How the lines are run. `trace`: of line 6, in Mooncake's format; without it conversations are made up."""

    short: bool = False
    trace: Path | None = None


def line_6(settings: Settings) -> Iterator[Figure]:
    """Offload of evicted blocks to host memory."""
    items, what = _conversations(settings)
    for clients, how in ((0, "all in the queue"), (1, "one at a time, so that no queue tells the future")):
        began = time.monotonic()
        found = host_tier.spared(items, clients)
        seconds = time.monotonic() - began
        shown = f"{found.share:.3f} ({found.with_tier:,} of {found.without:,}; {found.loaded_blocks:,} blocks loaded)"
        # What nobody can foresee is told, not promised; nor what a few short conversations give.
        held = None if settings.short or clients else found.share <= MOST_RECOMPUTED
        yield Figure(
            6, f"recomputed with the tier ÷ without, {what}, {how}", shown, f"≤ {MOST_RECOMPUTED}", held, seconds
        )
        same = "the same" if found.identical else "they differ"
        yield Figure(6, f"outputs, {how}", same, "the same", found.identical, seconds)


def _conversations(settings: Settings) -> tuple[list[Item], str]:
    if settings.short or settings.trace is None:
        return host_tier.conversations(20 if settings.short else 120, 3, VOCABULARY), "made-up conversations"
    return host_tier.read_mooncake(settings.trace, TRACE_REQUESTS, VOCABULARY), settings.trace.name


LINES: Final[dict[int, Callable[[Settings], Iterator[Figure]]]] = {6: line_6}
