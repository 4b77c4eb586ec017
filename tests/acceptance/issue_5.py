"""`python -m tests.acceptance.issue_5 [LINE…]`: run acceptance lines of the hardened engine.

Everything random is drawn from `--seed`, which is printed: the same seed sends the same requests, though not at the
same moments. The table of line 3 takes long: `--progress FILE` keeps what is finished and goes on from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .command import run_lines
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
    settings = Settings(short, seed, model, progress)
    raise typer.Exit(run_lines(lines, LINES, lambda line: LINES[line](settings), json_file, f"seed {seed}"))


if __name__ == "__main__":
    typer.run(main)
