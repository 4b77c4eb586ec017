"""The fault runs that every policy must survive (operators.md 2.11): what goes wrong, on which trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from .cell import Cell
from .faults import Faults, Span

FAULT_RUNS: Final[Mapping[str, tuple[str, Faults]]] = {
    "scrape loss of 20 %": ("step", Faults(scrape_loss=0.2)),
    "a pod that is never ready": ("step", Faults(never_ready=frozenset({4}))),
    "a pod that is Pending for an hour": ("step", Faults(pending_seconds={4: 3600.0})),
    "no metrics for ten minutes": ("diurnal", Faults(metrics_gone=(Span(1500.0, 2100.0),))),
    "a restart at the peak": ("diurnal", Faults(restarts=(1800.0,))),
    "series of dead pods for five minutes": ("diurnal", Faults(ghost_seconds=300.0)),
    "a night of long streams": ("long-night", Faults()),
    "a flash crowd of ten times": ("crowd", Faults()),
}
"""By their name: the synthetic trace, and what goes wrong."""


def fault_cell(name: str, cell: Cell) -> Cell:
    """Return `cell` on the fault run's trace, with its faults."""
    source, faults = FAULT_RUNS[name]
    return replace(cell, source=source, faults=faults)
