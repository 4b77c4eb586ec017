"""`python -m tests.acceptance.issue_5 [LINE…]`: run acceptance lines of the hardened engine.

Everything random is drawn from `--seed`, which is printed: the same seed sends the same requests, though not at the
same moments. The table of line 3 takes long: `--progress FILE` keeps what is finished and goes on from there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from octavo_engine.bench.machine import describe_machine

from .figures import Figure, figure_table
from .lines_5 import LINES, SCRIPTED, Settings


def main(
    lines: Annotated[list[int] | None, typer.Argument(help="1 to 7; all of them if none is given.")] = None,
    short: Annotated[bool, typer.Option("--short", help="Seconds each.")] = False,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    model: Annotated[str, typer.Option(help="Of line 2, such as bundled://smollm2-135m-instruct.")] = SCRIPTED,
    progress: Annotated[Path | None, typer.Option(help="Keep here what line 3 has finished; go on from it.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Run the lines, print figure and goal; the exit status is 1 if one of them fell short."""
    for line in lines or ():
        if line not in LINES:
            raise typer.BadParameter(f"there is no line {line} here: choose from {', '.join(map(str, LINES))}")
    settings = Settings(short, seed, model, progress)
    console, found = Console(stderr=True), list[Figure]()
    for line in lines or LINES:
        console.rule(f"line {line}, seed {seed}: {LINES[line].__doc__}")
        found += LINES[line](settings)
        if json_file is not None:
            json_file.write_text(json.dumps([figure._asdict() for figure in found], indent=2))
    terminal = Console()
    out = Console(width=terminal.width if terminal.is_terminal else 160)
    out.print(figure_table(found))
    out.print(f"seed {seed}; {describe_machine().sentence()}", highlight=False)
    raise typer.Exit(0 if all(figure.held is not False for figure in found) else 1)


if __name__ == "__main__":
    typer.run(main)
