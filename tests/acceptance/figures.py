"""One figure of an acceptance line beside its goal."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.markup import escape
from rich.table import Table

from .running import PYTHON, Ran, run

NOT_MEASURED: Final = "not measured"


class Figure(NamedTuple):
    """What was measured, and whether it is what was promised; `held` is None where the short form promises nothing."""

    line: int
    what: str
    figure: str
    goal: str
    held: bool | None
    seconds: float = 0.0
    measured: bool = True
    """False where there is no figure, since what would have printed it is missing or failed: short in every form."""


def bench(*arguments: str) -> tuple[Ran, dict[str, Any]]:
    """Run `octavo bench …`; return its figures, none if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        ran = run([PYTHON, "-m", "octavo_engine.cli", "bench", *arguments, "--json", str(report)])
        if ran.code or not report.exists():
            return ran, {}
        figures = json.loads(report.read_text())["figures"]
    return ran, figures if isinstance(figures, dict) else {"rows": figures}


def failed(line: int, ran: Ran) -> Figure:
    """Return the figure of a command that did not end well: its last words."""
    last = ran.output.strip().splitlines()[-3:]
    return Figure(line, ran.command, " / ".join(last), "ends well", False, ran.seconds, measured=False)


def missing(line: int, what: str, goal: str, why: str, seconds: float = 0.0) -> Figure:
    """Return a figure that could not be taken, and why: it falls short."""
    return Figure(line, what, f"{NOT_MEASURED}: {why}", goal, False, seconds, measured=False)


def at_least(line: int, what: str, value: float | None, goal: float, ran: Ran, form: str = "{:.2f}") -> Figure:
    """Return a figure that must reach its goal; one that was not measured does not."""
    held = value is not None and value >= goal
    return _beside(line, what, value, f"≥ {form.format(goal)}", held, ran, form)


def at_most(line: int, what: str, value: float | None, goal: float, ran: Ran, form: str = "{:.2f}") -> Figure:
    """Return a figure that must stay at or below its goal; one that was not measured does not."""
    held = value is not None and value <= goal
    return _beside(line, what, value, f"≤ {form.format(goal)}", held, ran, form)


def _beside(line: int, what: str, value: float | None, goal: str, held: bool, ran: Ran, form: str) -> Figure:
    shown = NOT_MEASURED if value is None else form.format(value)
    return Figure(line, what, shown, goal, held, ran.seconds, measured=value is not None)


def without_promises(figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures of a short form: what depends on the machine's speed is told; what is not there is short."""
    return [figure._replace(held=None) if figure.measured else figure for figure in figures]


def figure_table(figures: Sequence[Figure]) -> Table:
    """Return the figures beside their goals, and whether they are reached."""
    table = Table(show_lines=False)
    for heading in ("line", "what", "figure", "goal", ""):
        table.add_column(heading, overflow="fold")
    for figure in figures:
        verdict = {True: "[green]holds", False: "[red]falls short", None: "not judged"}[figure.held]
        table.add_row(str(figure.line), *map(escape, (figure.what, figure.figure, figure.goal)), verdict)
    return table
