"""Acceptance lines of the fleet, each figure beside its goal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from . import fleet_cells
from .figures import Figure, missing
from .fleet_cells import Judged
from .fleet_faults import fault_runs
from .running import REPOSITORY

DATA: Final = REPOSITORY.parent / "shared" / "data"


class Settings(NamedTuple):
    """How the lines are run. `data` has the recorded traces; `out` gets pictures; `workers` 0: one a processor."""

    short: bool = False
    data: Path = DATA
    seeds: int = fleet_cells.SEEDS
    workers: int = 0
    out: Path | None = None
    only: str = ""
    """Of line 5: only the cells whose trace begins so."""


def line_5(settings: Settings) -> Iterator[Figure]:
    """The autoscaler against every rival in the simulator, and its fault runs."""
    absent = [
        cell.source
        for cell in fleet_cells.cells(settings.data, settings.short)
        if "/" in cell.source and not Path(cell.source).exists()
    ]
    if absent:
        yield missing(5, "cells", "15", f"{sorted(set(absent))} are not there: name their folder with --data")
        return
    judged, began = [], time.monotonic()
    for cell in fleet_cells.cells(settings.data, settings.short):
        if not Path(cell.source).stem.startswith(settings.only):
            continue
        seeds = 1 if settings.short else settings.seeds
        judged.append(fleet_cells.run_cell(cell, seeds, settings.short, settings.workers, _tell, settings.out))
    seconds = time.monotonic() - began
    figures = [*_curves(judged, seconds), *_defaults(judged), *_losses(judged), *_faults(settings)]
    yield from ([figure._replace(held=None) for figure in figures] if settings.short else figures)


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _curves(judged: Sequence[Judged], seconds: float) -> Iterator[Figure]:
    won = [cell for cell in judged if cell.worst.worst <= fleet_cells.SAME]
    needed = fleet_cells.CELLS_WON * len(judged)
    what = "cells in which no rival's curve is cheaper than ours by more than 1 %"
    shown = f"{len(won)} of {len(judged)}: {', '.join(cell.name for cell in won)}"
    yield Figure(5, what, shown, f"≥ {needed:.0f}", len(won) >= needed, seconds)
    worst = max(judged, key=lambda cell: cell.worst.worst)
    level = worst.worst.worst_level
    shown = f"{worst.worst.worst:.2f} × {worst.worst.policy}'s at {level:.1%} ({worst.name})" if level else "none"
    yield Figure(5, "the worst ratio anywhere", shown, f"≤ {fleet_cells.WORST}", worst.worst.worst <= fleet_cells.WORST)


def _defaults(judged: Sequence[Judged]) -> Iterator[Figure]:
    for cell in judged:
        run, name = cell.default.median, Path(cell.cell.source).stem
        kept = f"{run.attainment:.2%} kept, {run.gpu_hours:.2f} GPU-hours"
        shown = f"{kept}; {', '.join(cell.dominated_by) or 'by none'}"
        yield Figure(5, f"{cell.name}: the default, dominated by", shown, "by none", not cell.dominated_by)
        promised = name in fleet_cells.STEADY
        goal = fleet_cells.ORACLE_GAPS.get(cell.cell.cold_start)
        held = cell.gap <= goal if promised and goal is not None else None
        shown = f"{cell.gap:+.0%} (the oracle {cell.oracle_hours:.2f})"
        limit = f"≤ {goal:.0%}" if goal is not None else "–"
        yield Figure(5, f"{cell.name}: GPU-hours over the oracle's", shown, limit, held)
        rate = run.reversals_per_hour
        held = rate <= fleet_cells.REVERSALS_PER_HOUR if promised else None
        yield Figure(5, f"{cell.name}: reversals within ten minutes, an hour", f"{rate:.1f}", "≤ 2", held)
    cut = sum(cell.most_cut for cell in judged)
    yield Figure(5, "streams of ours cut", str(cut), "0", cut == 0)


def _losses(judged: Sequence[Judged]) -> Iterator[Figure]:
    for cell in judged:
        for loss in cell.losses():
            yield Figure(5, "a loss", loss, "printed", None)


def _faults(settings: Settings) -> Iterator[Figure]:
    for run in fault_runs(60.0 if settings.short else 120.0):
        yield Figure(5, f"fault run: {run.name}", run.sentence(), "all served, peak ≤ 1.25 × oracle's + 1", run.held)


LINES: Final[dict[int, Callable[[Settings], Iterator[Figure]]]] = {5: line_5}
