"""`python -m tests.acceptance.issue_3 [LINE…]`: run the acceptance lines of the first complete Octavo.

Every line becomes its commands, and every command its figure; what a command prints is shown while it runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.cluster.leftovers import cluster_names

from .lines import LINES
from .running import PYTHON, Row, run


def main(
    lines: Annotated[list[int] | None, typer.Argument(help="1 to 9; all of them if none is given.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the table here, too.")] = None,
) -> None:
    """Run the lines, print line, command and figure; the exit status is 1 if one of them fell short."""
    chosen = lines or list(LINES)
    for line in chosen:
        if line not in LINES:
            raise typer.BadParameter(f"there is no line {line}: choose from 1 to {len(LINES)}")
    console = Console(stderr=True)
    rows: list[Row] = []
    with _no_new_cluster():
        for line in chosen:
            console.rule(f"line {line}: {LINES[line].__doc__}")
            rows += LINES[line]()
            if json_file is not None:
                json_file.write_text(json.dumps([row._asdict() for row in rows], indent=2))
    terminal = Console()
    Console(width=terminal.width if terminal.is_terminal else 160).print(_table(rows))
    raise typer.Exit(0 if all(row.passed for row in rows) else 1)


@contextmanager
def _no_new_cluster() -> Iterator[None]:
    """Take down on the way out what cluster the lines started; one that ran before is used and left."""
    before = set(cluster_names())
    try:
        yield
    finally:
        for name in sorted(set(cluster_names()) - before):
            run([PYTHON, "-m", "tests.cluster", "down", "--name", name])


def _table(rows: list[Row]) -> Table:
    table = Table(show_lines=True)
    for heading in ("line", "command", "figure", "s", ""):
        table.add_column(heading, overflow="fold")
    for row in rows:
        verdict = "[green]held" if row.passed else "[red]fell short"
        table.add_row(str(row.line), row.command, row.figure, f"{row.seconds:.0f}", verdict)
    return table


if __name__ == "__main__":
    typer.run(main)
