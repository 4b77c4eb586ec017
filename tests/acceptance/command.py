"""What every `python -m tests.acceptance.issue_N` does: run lines, keep what is found, show it beside its goals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import typer
from rich.console import Console

from octavo_engine.bench.machine import describe_machine

from .figures import Figure, figure_table


def run_lines(
    lines: Sequence[int] | None,
    known: Mapping[int, Callable[..., object]],
    figures_of: Callable[[int], Iterable[Figure]],
    json_file: Path | None,
    note: str = "",
) -> int:
    """Run `lines`, all that are known if none is named, and print their figures; return the exit status.

    It is 1 if a figure fell short. The file has what is finished after each line. `note` is said with every heading and
    before the machine. Raises BadParameter for a line that is not known, before any is run.
    """
    for line in lines or ():
        if line not in known:
            raise typer.BadParameter(f"there is no line {line} here: choose from {', '.join(map(str, known))}")
    if json_file is not None and not json_file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {json_file.parent}: make it first")
    console, found = Console(stderr=True), list[Figure]()
    for line in lines or known:
        console.rule(f"line {line}{note and ', '}{note}: {known[line].__doc__}")
        found += figures_of(line)
        if json_file is not None:
            json_file.write_text(json.dumps([figure._asdict() for figure in found], indent=2))
    terminal = Console()
    out = Console(width=terminal.width if terminal.is_terminal else 160)
    out.print(figure_table(found))
    out.print(f"{note}{note and '; '}{describe_machine().sentence()}", highlight=False)
    return 0 if all(figure.held is not False for figure in found) else 1
