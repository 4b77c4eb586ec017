"""Plots as SVG text: groups of horizontal bars, and lines. Pure; readable in a light and in a dark page.

A picture states its numbers as text beside each bar, names its axes, and carries a title and a description for those
who do not see it. Colours differ in lightness too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from octavo_engine.bench.statistics import number

WIDTH: Final = 760
_LEFT: Final = 190
_RIGHT: Final = 90
_BAR: Final = 20
_GAP: Final = 5
_COLOURS: Final = ("#9aa5b1", "#5b8db8", "#1f4e79", "#c2571a", "#6b3fa0", "#2c7a51")
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24}.t{font-weight:600;font-size:15px}.n{font-size:11px;fill:#57606a}"
    ".g{stroke:#d0d7de}.p{fill:#fff}.l{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.n{fill:#9198a1}.g{stroke:#3d444d}.p{fill:#0d1117}}"
)


class Bar(NamedTuple):
    """One value and what it is called."""

    label: str
    value: float


class Group(NamedTuple):
    """Bars that compare with one another: they share a scale. The last one is the one to look at."""

    title: str
    bars: Sequence[Bar]


class Line(NamedTuple):
    """Points (x, y) in the order of x."""

    label: str
    points: Sequence[tuple[float, float]]


def bars(title: str, groups: Sequence[Group], note: str = "") -> str:
    """Return groups of horizontal bars, each group on its own scale from zero."""
    body, y = [], 34
    for group in groups:
        y += 22
        body.append(_text(12, y, group.title, "start"))
        y += 8
        largest = max((bar.value for bar in group.bars), default=0.0) or 1.0
        for index, bar in enumerate(group.bars):
            colour = _COLOURS[2] if index == len(group.bars) - 1 else _COLOURS[index % 2]
            length = (WIDTH - _LEFT - _RIGHT) * bar.value / largest
            body.append(_text(_LEFT - 8, y + 15, bar.label, "end"))
            body.append(f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_BAR}" fill="{colour}"/>')
            body.append(_text(_LEFT + length + 6, y + 15, number(bar.value), "start"))
            y += _BAR + _GAP
    facts = "; ".join(f"{g.title}: " + ", ".join(f"{b.label} {number(b.value)}" for b in g.bars) for g in groups)
    return _document(title, facts, body, y + 8, note)


def lines(
    title: str, x_label: str, y_label: str, series: Sequence[Line], note: str = "", *, log_x: bool = False
) -> str:
    """Return lines over a common x axis; y goes from zero. What is not finite is left out. `log_x`: x in decades."""
    kept = [
        Line(
            line.label,
            [(x, y) for x, y in line.points if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_x)],
        )
        for line in series
    ]
    points = [point for line in kept for point in line.points] or [(1.0, 1.0)]
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    top = max(y for _, y in points) or 1.0
    left, right, up, down = 64, WIDTH - 24, 56, 316

    def across(x: float) -> float:
        if log_x:
            low_log, high_log = math.log10(low), math.log10(max(high, low * 1.001))
            return left + (right - left) * (math.log10(x) - low_log) / (high_log - low_log)
        return left + (right - left) * (x - low) / ((high - low) or 1.0)

    def along(y: float) -> float:
        return down - (down - up) * y / top

    body = []
    for tick in _decades(low, high) if log_x else _ticks(low, high):
        body.append(f'<line class="g" x1="{across(tick):.1f}" y1="{up}" x2="{across(tick):.1f}" y2="{down}"/>')
        body.append(_text(across(tick), down + 17, f"{tick:g}", "middle", "n"))
    for tick in _ticks(0.0, top):
        body.append(f'<line class="g" x1="{left}" y1="{along(tick):.1f}" x2="{right}" y2="{along(tick):.1f}"/>')
        body.append(_text(left - 6, along(tick) + 4, f"{tick:g}", "end", "n"))
    body.append(_text((left + right) / 2, down + 36, x_label, "middle"))
    body.append(_text(12, up - 10, y_label, "start", "n"))
    for index, line in enumerate(kept):
        colour = _COLOURS[(index + 1) % len(_COLOURS)]
        path = " ".join(f"{across(x):.1f},{along(y):.1f}" for x, y in line.points)
        body.append(f'<polyline class="l" stroke="{colour}" points="{path}"/>')
        y = down + 56 + 18 * index
        body.append(f'<rect x="{left}" y="{y - 10}" width="24" height="4" fill="{colour}"/>')
        body.append(_text(left + 32, y - 4, line.label, "start"))
    facts = f"{y_label} by {x_label}: " + ", ".join(line.label for line in kept)
    return _document(title, facts, body, down + 56 + 18 * len(kept), note)


def cumulative(values: Sequence[float], points: int = 200) -> list[tuple[float, float]]:
    """Return the distribution of values as (value, % of values up to it), thinned to about `points` points.

    Infinite ones are counted, so that the line ends below 100.
    """
    ordered = sorted(values)
    step = max(1, len(ordered) // points)
    chosen = sorted({*range(0, len(ordered), step), len(ordered) - 1}) if ordered else []
    return [(ordered[index], 100 * (index + 1) / len(ordered)) for index in chosen]


def _text(x: float, y: float, content: str, anchor: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(content)}</text>'


def _document(title: str, facts: str, body: Sequence[str], height: float, note: str) -> str:
    noted = _wrap(note, 125)
    whole = height + 8 + 15 * len(noted)
    notes = [_text(12, height + 10 + 15 * index, line, "start", "n") for index, line in enumerate(noted)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {whole:.0f}" width="{WIDTH}" '
        f'height="{whole:.0f}" role="img" aria-labelledby="title description">'
    )
    parts = [
        head,
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="description">{escape(facts)}</desc>',
        f"<style>{_STYLE}</style>",
        '<rect class="p" width="100%" height="100%"/>',
        _text(12, 24, title, "start", "t"),
        *body,
        *notes,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _wrap(text: str, width: int) -> list[str]:
    found: list[str] = []
    for word in text.split():
        if found and len(found[-1]) + 1 + len(word) <= width:
            found[-1] += " " + word
        else:
            found.append(word)
    return found


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers from low to high."""
    extent = (high - low) or 1.0
    raw = extent / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten from low to high."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for power in powers for factor in (1, 2, 5) if low <= (value := factor * 10.0**power) <= high]
