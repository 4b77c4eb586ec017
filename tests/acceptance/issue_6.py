"""`python -m tests.acceptance.issue_6 [LINE…]`: run acceptance lines of the GPU engine, those that are built."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .command import run_lines
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
    settings = Settings(short, trace)
    raise typer.Exit(run_lines(lines, LINES, lambda line: LINES[line](settings), json_file))


if __name__ == "__main__":
    typer.run(main)
