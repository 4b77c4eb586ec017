"""Latencies for people: one row each, a column for each percentile. Every bench that has any shows them so."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_engine.bench.report import Table
from octavo_engine.bench.statistics import PERCENTILES, number


def latency_table(title: str, latencies: Mapping[str, Mapping[str, float]], note: str = "") -> Table:
    """Return a table of `percentiles` by name, given in seconds, shown in milliseconds."""
    columns = (*(f"p{percent}" for percent in PERCENTILES), "mean")
    rows = [(name, *(number(found[column] * 1e3) for column in columns)) for name, found in latencies.items()]
    return Table(title, ("latency, ms", *columns), rows, note)
