"""`python -m tests.acceptance.issue_4 [LINE…]`: run the acceptance lines of the fast CPU engine.

Each line becomes its benches, each figure stands beside its goal. On a machine that does something else meanwhile the
figures are worth little: the load at the start is printed with every one of them. The prose of line 5, with Debian's
bible-kjv installed: `echo gen1:1-rev22:21 | bible -f > kjv.txt`, then `--text kjv.txt`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .command import run_lines
from .figures import Figure, without_promises
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
    raise typer.Exit(run_lines(lines, LINES, lambda line: run_line(line, settings), json_file))


def run_line(line: int, settings: Settings) -> list[Figure]:
    """Return a line's figures; those of the short form promise nothing that depends on the machine."""
    figures = list(LINES[line](settings))
    return without_promises(figures) if settings.short else figures


if __name__ == "__main__":
    typer.run(main)
