"""`python -m tests.acceptance.issue_4 [LINE…]`: run the acceptance lines of the fast CPU engine.

Each line becomes its benches, each figure stands beside its goal. On a machine that does something else meanwhile the
figures are worth little: the load at the start is printed with every one of them. The prose of line 5, with Debian's
bible-kjv installed: `echo gen1:1-rev22:21 | bible -f > kjv.txt`, then `--text kjv.txt`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from octavo_engine.bench.machine import describe_machine

from .figures import Figure, figure_table, without_promises
from .lines_4 import LINES, Settings


def main(
    lines: Annotated[list[int] | None, typer.Argument(help="1 to 8; all of them if none is given.")] = None,
    short: Annotated[bool, typer.Option("--short", help="Seconds each: figures without promises.")] = False,
    text: Annotated[
        list[str] | None, typer.Option(help="A prose text for line 5, such as a Bible in plain text.")
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Install the peers that are missing.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Run the lines, print figure and goal; the exit status is 1 if one of them fell short."""
    settings = Settings(short, text or [], install)
    for line in lines or ():
        if line not in LINES:
            raise typer.BadParameter(f"there is no line {line}: choose from 1 to {len(LINES)}")
    console, found = Console(stderr=True), []
    for line in lines or LINES:
        console.rule(f"line {line}: {LINES[line].__doc__}")
        found += run_line(line, settings)
        if json_file is not None:
            json_file.write_text(json.dumps([figure._asdict() for figure in found], indent=2))
    terminal = Console()
    out = Console(width=terminal.width if terminal.is_terminal else 160)
    out.print(figure_table(found))
    out.print(describe_machine().sentence(), highlight=False)
    raise typer.Exit(0 if all(figure.held is not False for figure in found) else 1)


def run_line(line: int, settings: Settings) -> list[Figure]:
    """Return a line's figures; those of the short form promise nothing that depends on the machine."""
    figures = list(LINES[line](settings))
    return without_promises(figures) if settings.short else figures


if __name__ == "__main__":
    typer.run(main)
