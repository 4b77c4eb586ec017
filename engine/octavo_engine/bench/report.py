"""A report as a person reads it (tables) and as a program does (JSON). The same facts in both."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table as RichTable

from octavo_engine.bench.machine import Machine


class Table(msgspec.Struct, frozen=True):
    """Cells are texts, made by whoever knows the unit; the first column names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def typed_command() -> str:
    """Return the command line of this process as a shell takes it. A password in a URL is left out of it."""
    return shlex.join(["octavo", *(re.sub(r"//[^/@\s]+@", "//", argument) for argument in sys.argv[1:])])


class Report(msgspec.Struct, frozen=True):
    """One run of one bench: where, how configured, and what came out. `figures` is what `--json` is read for."""

    title: str
    machine: Machine
    configuration: Mapping[str, Any]
    tables: Sequence[Table]
    figures: Any
    complete: bool = True
    """False for what was known when a run was cut short, or is known so far."""
    command: str = msgspec.field(default_factory=typed_command)


def show(report: Report, console: Console | None = None) -> None:
    """Print the tables, and below them the machine, the configuration and the command."""
    # No markup: titles and cells quote what servers answered and paths, brackets and all.
    terminal = console or Console(markup=False)
    wide = max(terminal.width, 140)
    out = terminal if terminal.is_terminal else Console(file=terminal.file, width=wide, markup=False)
    for table in report.tables:
        shown = RichTable(title=table.title, title_justify="left", caption=table.note or None, caption_justify="left")
        for index, column in enumerate(table.columns):
            shown.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
        for row in table.rows:
            shown.add_row(*row)
        out.print(shown)
    if not report.complete:
        out.print("Incomplete: the run was cut short.", highlight=False)
    settings = ", ".join(f"{name} {value}" for name, value in report.configuration.items())
    out.print(f"{report.machine.sentence()}\n{settings}\n{report.command}", highlight=False, soft_wrap=True)


def write_json(path: Path, report: Report) -> None:
    """Write everything but the tables, which say the same for people.

    JSON has no number for what is not finite: `null` is what was not measured, `"infinite"` is infinity, such as the
    latency of a request that failed.
    """
    content = {
        "title": report.title,
        "complete": report.complete,
        "command": report.command,
        "machine": msgspec.to_builtins(report.machine),
        "configuration": dict(report.configuration),
        "figures": _in_json(msgspec.to_builtins(report.figures)),
    }
    _replace(path, msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def check_writable(path: Path) -> None:
    """Raise OSError if no report can be written at the path; what lies there stays as it is."""
    if path.exists() and not _replaceable(path):
        with path.open("ab"):
            return
    beside = _beside(path)
    beside.touch()
    beside.unlink()


def _replace(path: Path, data: bytes) -> None:
    """Write a file that is whole at every moment: a reader, or what is left of a run that died, has all or the old."""
    if path.exists() and not _replaceable(path):
        path.write_bytes(data)
        return
    beside = _beside(path)
    try:
        beside.write_bytes(data)
        beside.replace(path.resolve())
    finally:
        beside.unlink(missing_ok=True)


def _replaceable(path: Path) -> bool:
    """Whether another file may take its place: it is no device, and the folder can be written."""
    return path.is_file() and os.access(path.resolve().parent, os.W_OK)


def _beside(path: Path) -> Path:
    target = path.resolve()
    return target.with_name(f".{target.name}.{os.getpid()}")


def _in_json(value: Any) -> Any:
    """Return the value with null or a word for what JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    if isinstance(value, dict):
        return {key: _in_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(item) for item in value]
    return value
