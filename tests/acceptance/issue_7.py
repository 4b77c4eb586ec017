"""`python -m tests.acceptance.issue_7 [LINE…]`: run acceptance lines of the fleet, those that are built."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .command import run_lines
from .lines_7 import DATA, LINES, Settings


def main(
    lines: Annotated[list[int] | None, typer.Argument(help="All that are built if none is given.")] = None,
    short: Annotated[bool, typer.Option("--short", help="A minute or so each.")] = False,
    data: Annotated[Path, typer.Option(file_okay=False, help="Where the recorded traces are.")] = DATA,
    seeds: Annotated[int, typer.Option(min=1, help="Of line 5: runs of each made-up trace.")] = 20,
    jobs: Annotated[int, typer.Option(min=0, help="Of line 5: processes; 0: one a processor.")] = 0,
    only: Annotated[str, typer.Option(help="Of line 5: only cells whose trace's name begins so.")] = "",
    out: Annotated[Path | None, typer.Option(file_okay=False, help="A folder for pictures of the curves.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Run the lines, print figure and goal; the exit status is 1 if one of them fell short."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    settings = Settings(short, data, seeds, jobs, out, only)
    raise typer.Exit(run_lines(lines, LINES, lambda line: LINES[line](settings), json_file))


if __name__ == "__main__":
    typer.run(main)
