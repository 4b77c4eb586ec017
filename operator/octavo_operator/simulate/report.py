"""What a comparison found: a table for people, JSON for programs, and pictures. The same facts in all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from .catalogue import ENTRIES, OURS, load_curve
from .cell import Cell
from .curve import Comparison, Mark, compare, frontier
from .plot import COLOURS, Line, Panel, stacked
from .result import Result
from .sweep import Spread

SLOTS: Final = 60
"""A picture's rates and attainments are means over this many parts of the trace."""


def table(cell: Cell, found: Sequence[Spread]) -> Table:
    """Return the runs of a cell, one a row."""
    wanted = f"TTFT ≤ {cell.objective.ttft:g} s"
    wanted += f", mean ITL ≤ {cell.objective.itl * 1000:g} ms" if math.isfinite(cell.objective.itl) else ""
    shown = Table(title=f"{name_of(cell)}: cold start {cell.cold_start:g} s, {wanted}", title_justify="left")
    for heading in (
        "policy", "target", "kept", "GPU-h", "TTFT p50", "p99", "ITL p50", "peak", "changes/h", "reversals/h",
        "not served", "cut",
    ):  # fmt: skip
        shown.add_column(heading, justify="left" if heading == "policy" else "right")
    for spread in found:
        run = spread.median
        style = "bold" if run.policy == OURS else ""
        shown.add_row(
            escape(run.policy),
            f"{run.value:g}",
            _with_range(run.attainment, spread.attainment, spread.runs, "{:.2%}"),
            _with_range(run.gpu_hours, spread.gpu_hours, spread.runs, "{:.2f}"),
            f"{run.ttft_p50:.2f}",
            f"{run.ttft_p99:.1f}",
            f"{run.itl_p50 * 1000:.0f} ms",
            f"{run.peak:g}",
            f"{run.changes / run.hours:.1f}",
            f"{run.reversals_per_hour:.1f}",
            f"{run.refused + run.expired + run.too_long + run.unfinished:g}",
            f"{run.cut:g}",
            style=style,
        )
    return shown


def _with_range(value: float, extent: tuple[float, float], runs: int, form: str) -> str:
    text = form.format(value)
    return text if runs == 1 else f"{text} ({form.format(extent[0])}–{form.format(extent[1])})"


def name_of(cell: Cell) -> str:
    """Return the trace's name without its folder."""
    return Path(cell.source).stem


def curves(found: Sequence[Spread]) -> dict[str, list[Mark]]:
    """Return each policy's frontier of median attainment and cost."""
    marks: dict[str, list[Mark]] = {}
    for spread in found:
        marks.setdefault(spread.median.policy, []).append(Mark(spread.median.attainment, spread.median.gpu_hours))
    return {policy: frontier(points) for policy, points in marks.items()}


def comparisons(found: Sequence[Spread]) -> list[Comparison]:
    """Return our curve against each other one; empty if ours was not run."""
    by_policy = curves(found)
    ours = by_policy.get(OURS)
    if ours is None:
        return []
    return [compare(ours, policy, theirs) for policy, theirs in by_policy.items() if policy != OURS]


def comparison_table(cell: Cell, compared: Sequence[Comparison]) -> Table:
    """Return our GPU-hours over each other's at equal attainment. Losses are shown like wins."""
    levels = sorted({level for comparison in compared for level in comparison.ratios})
    shown = Table(
        title=f"{name_of(cell)}, cold start {cell.cold_start:g} s: our GPU-hours ÷ theirs at equal attainment",
        caption="–: neither gets there; ∞: only they do; 0: only we do",
        title_justify="left",
        caption_justify="left",
    )
    shown.add_column("against")
    for level in levels:
        shown.add_column(f"{level:.1%}", justify="right")
    for comparison in compared:
        cells = [comparison.ratios.get(level) for level in levels]
        shown.add_row(escape(comparison.policy), *(_ratio(ratio) for ratio in cells))
    return shown


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    if math.isinf(ratio):
        return "[red]∞"
    text = "0" if ratio == 0 else f"{ratio:.2f}"
    return f"[red]{text}" if ratio > 1.01 else text


def as_json(cell: Cell, found: Sequence[Spread], compared: Sequence[Comparison]) -> dict[str, Any]:
    """Return everything as JSON takes it: what is not finite is a string."""
    policies = [
        {
            "policy": spread.median.policy,
            "target": spread.median.value,
            "slo_attainment": spread.median.attainment,
            "gpu_hours": spread.median.gpu_hours,
            "runs": spread.runs,
            "slo_attainment_range": spread.attainment,
            "gpu_hours_range": spread.gpu_hours,
            **{
                name: value
                for name, value in spread.median._asdict().items()
                if name not in ("policy", "value", "seed", "attainment", "gpu_hours")
            },
        }
        for spread in found
    ]
    pod = cell.calibration
    content: dict[str, Any] = _finite(
        {
            "trace": name_of(cell),
            "cold_start_seconds": cell.cold_start,
            "slo_ttft_seconds": cell.objective.ttft,
            "slo_itl_seconds": cell.objective.itl,
            "pod": {
                "blocks": pod.blocks,
                "block_size": pod.block_size,
                "step_seconds": pod.step_seconds,
                "prefill_tokens_per_second": pod.prefill_tokens_per_second,
                "context_token_seconds": pod.context_token_seconds,
            },
            "policies": policies,
            "ours_over_theirs": {
                comparison.policy: {f"{level:g}": ratio for level, ratio in comparison.ratios.items()}
                for comparison in compared
            },
        }
    )
    return content


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinite"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a report."""
    path.write_text(json.dumps(content, indent=2) + "\n")


# --- Pictures ---------------------------------------------------------------------------------------------------------
def colour_of(policy: str) -> str:
    """Return a policy's colour, the same in every picture."""
    return COLOURS[list(ENTRIES).index(policy) % len(COLOURS)]


def timeline(cell: Cell, results: Mapping[str, Result]) -> str:
    """Return the picture of one run of each policy: demand, replicas, and the objective over time."""
    trace = cell.trace(0)
    slot = trace.seconds / SLOTS
    rates = [0.0] * SLOTS
    for request in trace.requests:
        rates[min(SLOTS - 1, int(request.at / slot))] += 1 / slot
    curve = load_curve(trace, cell.calibration).smoothed(slot)
    demand = [
        Line("requests/s", [(i * slot / 60, rate) for i, rate in enumerate(rates)], "#7f7f7f"),
        Line("pods", [(i * slot / 60, curve.peak(i * slot, i * slot)) for i in range(SLOTS)], "#222222"),
    ]
    replicas = [Line(policy, _counts(result), colour_of(policy), steps=True) for policy, result in results.items()]
    kept = [Line(policy, _kept(cell, result, slot), colour_of(policy)) for policy, result in results.items()]
    key = [
        (f"{policy}: {result.attainment(cell.objective):.2%} kept, {result.gpu_hours:.2f} GPU-hours", colour_of(policy))
        for policy, result in results.items()
    ]
    panels = [
        Panel("demand: requests a second (grey), and pods' worth of work (black)", demand),
        Panel("replicas that take requests", replicas),
        Panel(f"% of requests with a first token within {cell.objective.ttft:g} s", kept, top=100),
    ]
    return stacked(f"{name_of(cell)}, cold start {cell.cold_start:g} s", "minutes", panels, key)


def _counts(result: Result) -> list[tuple[float, float]]:
    points = [(count.at / 60, float(count.ready)) for count in result.counts if count.at <= result.seconds]
    return [*points, (result.seconds / 60, points[-1][1])] if points else []


def _kept(cell: Cell, result: Result, slot: float) -> list[tuple[float, float]]:
    kept, all_of_slot = [0] * SLOTS, [0] * SLOTS
    for ticket in result.tickets:
        index = min(SLOTS - 1, int(ticket.request.at / slot))
        all_of_slot[index] += 1
        kept[index] += cell.objective.kept(ticket)
    return [((i + 0.5) * slot / 60, 100 * kept[i] / all_of_slot[i]) for i in range(SLOTS) if all_of_slot[i]]


def curve_picture(cell: Cell, found: Sequence[Spread]) -> str:
    """Return what each attainment costs under each policy."""
    by_policy = curves(found)
    lines, key = [], []
    for policy, marks in by_policy.items():
        shown = [mark for mark in marks if mark.attainment >= 0.8]
        lines.append(Line(policy, [(100 * m.attainment, m.gpu_hours) for m in shown], colour_of(policy), dots=True))
        key.append((f"{policy} ({ENTRIES[policy].swept})", colour_of(policy)))
    title = f"{name_of(cell)}, cold start {cell.cold_start:g} s: what an attainment costs"
    panel = Panel("GPU-hours (lower is better)", [line for line in lines if line.points])
    return stacked(title, "% of requests that kept the objective", [panel], key, height=320)
