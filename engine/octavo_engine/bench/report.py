"""A report as a person reads it (tables) and as a program does (JSON). The same facts in both."""

from __future__ import annotations

import math
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


class Report(msgspec.Struct, frozen=True):
    """One run of one bench: where, how configured, and what came out. `figures` is what `--json` is read for."""

    title: str
    machine: Machine
    configuration: Mapping[str, Any]
    tables: Sequence[Table]
    figures: Any


def show(report: Report, console: Console | None = None) -> None:
    """Print the tables, and below them the machine and the configuration."""
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
    settings = ", ".join(f"{name} {value}" for name, value in report.configuration.items())
    out.print(f"{report.machine.sentence()}\n{settings}", highlight=False, soft_wrap=True)


def write_json(path: Path, report: Report) -> None:
    """Write everything but the tables, which say the same for people.

    JSON has no number for what is not finite: `null` is what was not measured, `"infinite"` is infinity, such as the
    latency of a request that failed.
    """
    content = {
        "title": report.title,
        "machine": msgspec.to_builtins(report.machine),
        "configuration": dict(report.configuration),
        "figures": _in_json(msgspec.to_builtins(report.figures)),
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def _in_json(value: Any) -> Any:
    """Return the value with null or a word for what JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    if isinstance(value, dict):
        return {key: _in_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(item) for item in value]
    return value
