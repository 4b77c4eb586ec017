"""Acceptance 5's fault runs: ours under each fault, beside the oracle on the same trace without any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from octavo_operator.simulate.catalogue import ENTRIES, ORACLE, OURS
from octavo_operator.simulate.cell import Cell
from octavo_operator.simulate.faultruns import FAULT_RUNS, fault_cell
from octavo_operator.simulate.faults import Faults
from octavo_operator.simulate.result import Objective, Result

STALE_SECONDS = 30.0
"""So long a pod's last sample may stand in for a lost one."""


class FaultRun(NamedTuple):
    """One fault run. `shrinks_blind`: changes downwards while no metrics came. `last`: replicas wanted at the end."""

    name: str
    attainment: float
    gpu_hours: float
    not_served: int
    cut: int
    shrinks_blind: int
    peak: int
    oracle_peak: int
    last: int

    @property
    def held(self) -> bool:
        """Everybody is served, nobody is cut, nothing shrinks blind, and the peak is near the oracle's."""
        lost = self.not_served or self.cut or self.shrinks_blind
        return not lost and self.peak <= 1.25 * self.oracle_peak + 1

    def sentence(self) -> str:
        """Return the figures in words."""
        return (
            f"{self.attainment:.2%} kept, {self.gpu_hours:.2f} GPU-hours, {self.not_served} not served, "
            f"{self.cut} cut, {self.shrinks_blind} shrinks without metrics, peak {self.peak} "
            f"(oracle {self.oracle_peak}), {self.last} at the end"
        )


def fault_runs(cold_start: float) -> Iterator[FaultRun]:
    """Make the runs."""
    base = Cell("step", cold_start, Objective(ttft=2.0))
    for name, (_, faults) in FAULT_RUNS.items():
        cell = fault_cell(name, base)
        ours = cell.run(OURS, ENTRIES[OURS].default, 0)
        foreseen = replace(cell, faults=Faults()).run(ORACLE, ENTRIES[ORACLE].default, 0)
        yield FaultRun(
            name,
            ours.attainment(cell.objective),
            ours.gpu_hours,
            sum(count for outcome, count in ours.outcomes.items() if outcome not in ("done", "cut")),
            ours.outcomes["cut"],
            _blind(ours, faults),
            ours.peak,
            foreseen.peak,
            ours.counts[-1].wanted,
        )


def _blind(result: Result, faults: Faults) -> int:
    return sum(
        change.after < change.before
        for change in result.changes
        for span in faults.metrics_gone
        if span.begin + STALE_SECONDS < change.at < span.end
    )
