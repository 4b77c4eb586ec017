"""The whole table: subject × circumstance. A file keeps what is finished, so that a run that was cut off goes on."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.acceptance.running import REPOSITORY

from .circumstances import CIRCUMSTANCES, Circumstance
from .subjects import Subject, short_subjects, subjects
from .trying import Cell, attempt

REQUESTS: Final = 200
SHORT_REQUESTS: Final = 24
_WHAT_COUNTS: Final = ("engine/**/*.py", "kernels/**/*.so", "tests/acceptance/determinism/*.py")


def fill(short: bool, seed: int, progress: Path | None = None) -> list[Cell]:
    """Return all cells, those that `progress` has already included, and keep it up to date."""
    count = SHORT_REQUESTS if short else REQUESTS
    circumstances = [each for each in CIRCUMSTANCES if each.short] if short else list(CIRCUMSTANCES)
    kept = _Progress(progress, f"{count} requests, seed {seed}, {_fingerprint()}")
    for subject in short_subjects() if short else subjects():
        if not _finished(subject, circumstances, kept.cells):
            kept.add(attempt(subject, circumstances, count, seed, _tell))
    return kept.cells


def _finished(subject: Subject, circumstances: Sequence[Circumstance], cells: Sequence[Cell]) -> bool:
    done = {cell.circumstance for cell in cells if cell.subject == subject.name}
    return done >= {circumstance.name for circumstance in circumstances}


def _tell(cell: Cell) -> None:
    verdict = (cell.difference or "identical") + (f" ({cell.evidence})" if cell.evidence else "")
    print(f"  {cell.subject}: {cell.circumstance}: {verdict}, {cell.seconds:.1f} s", file=sys.stderr, flush=True)


def _fingerprint() -> str:
    """Name the code that the cells are about."""
    state = hashlib.sha256()
    for pattern in _WHAT_COUNTS:
        for path in sorted(REPOSITORY.glob(pattern)):
            state.update(path.read_bytes())
    return state.hexdigest()[:16]


class _Progress:
    """The finished subjects' cells, one a line, behind a line that says what they are of. Another one begins anew."""

    def __init__(self, path: Path | None, title: str) -> None:
        self._path = path
        self._title = title
        self.cells: list[Cell] = []
        if path is not None and path.exists():
            first, *lines = path.read_text().splitlines() or [""]
            if first == title:
                self.cells = [Cell(*json.loads(line)) for line in lines]

    def add(self, cells: Sequence[Cell]) -> None:
        again = {cell.subject for cell in cells}
        self.cells = [*(cell for cell in self.cells if cell.subject not in again), *cells]
        if self._path is not None:
            part = self._path.with_name(self._path.name + ".part")
            part.write_text("\n".join([self._title, *(json.dumps(cell) for cell in self.cells)]) + "\n")
            part.replace(self._path)


def show(cells: Sequence[Cell]) -> None:
    """Print the table, and below it what is not identical."""
    columns = list(dict.fromkeys(cell.circumstance for cell in cells))
    table = Table(title="Told as it was told alone, to the bit", caption="= identical, ≠ not, · not tried")
    table.add_column("subject", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="center")
    rows = {cell.subject: dict.fromkeys(columns, "·") for cell in cells}
    for cell in cells:
        rows[cell.subject][cell.circumstance] = "[red]≠" if cell.difference else "="
    for subject, marks in rows.items():
        table.add_row(subject, *marks.values())
    terminal = Console()
    out = terminal if terminal.is_terminal else Console(width=180)
    out.print(table)
    for cell in cells:
        if cell.difference:
            out.print(f"{cell.subject}, {cell.circumstance}: {cell.difference}", markup=False, highlight=False)
