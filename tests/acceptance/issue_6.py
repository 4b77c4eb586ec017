"""`python -m tests.acceptance.issue_6 [LINE…]`: run acceptance lines of the GPU engine, those that are built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from octavo_engine.bench.machine import describe_machine

from .figures import Figure, figure_table
from .lines_6 import LINES, Settings


def main(
    lines: Annotated[list[int] | None, typer.Argument(help="All that are built if none is given.")] = None,
    short: Annotated[bool, typer.Option("--short", help="Seconds each.")] = False,
    trace: Annotated[
        Path | None, typer.Option(exists=True, help="Of line 6: JSON lines with timestamp, lengths and hash_ids.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Run the lines, print figure and goal; the exit status is 1 if one of them fell short."""
    for line in lines or ():
        if line not in LINES:
            raise typer.BadParameter(f"there is no line {line} here: choose from {', '.join(map(str, LINES))}")
    console, found = Console(stderr=True), list[Figure]()
    for line in lines or LINES:
        console.rule(f"line {line}: {LINES[line].__doc__}")
        found += LINES[line](Settings(short, trace))
        if json_file is not None:
            json_file.write_text(json.dumps([figure._asdict() for figure in found], indent=2))
    terminal = Console()
    out = Console(width=terminal.width if terminal.is_terminal else 160)
    out.print(figure_table(found))
    out.print(describe_machine().sentence(), highlight=False)
    raise typer.Exit(0 if all(figure.held is not False for figure in found) else 1)


if __name__ == "__main__":
    typer.run(main)
