"""Plots as SVG text: groups of horizontal bars, and lines. Pure; readable in a light and in a dark page.

A picture states its numbers as text beside each bar, names its axes, and carries a title and a description for those
who do not see it. Colours differ in lightness too. Texts are wrapped, or drawn narrower, so that they stay inside.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from octavo_engine.bench.statistics import Spread, number

WIDTH: Final = 760
_LEFT: Final = 190
_RIGHT: Final = 180
_BAR: Final = 20
_GAP: Final = 5
_LINE: Final = 18
_CHARACTER: Final = {"": 7.2, "t": 8.6, "n": 5.9}
"""Width of an average one, by the class of the text: generous, as fonts differ."""
_COLOURS: Final = ("#9aa5b1", "#5b8db8", "#1f4e79", "#c2571a", "#6b3fa0", "#2c7a51")
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24}.t{font-weight:600;font-size:15px}.n{font-size:11px;fill:#57606a}"
    ".g{stroke:#d0d7de}.p{fill:#fff}.l{fill:none;stroke-width:2}.w{stroke:#c2571a;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.n{fill:#9198a1}.g{stroke:#3d444d}.p{fill:#0d1117}"
    ".w{stroke:#f0883e}}"
)


class Bar(NamedTuple):
    """One value and what it is called; of a spread, the median, with a whisker from the lowest to the highest."""

    label: str
    value: float | Spread

    @property
    def length(self) -> float:
        """The value that its length stands for."""
        return self.value.median if isinstance(self.value, Spread) else self.value

    @property
    def end(self) -> float:
        """The largest value that is drawn; 0 where none can be."""
        end = self.value.high if isinstance(self.value, Spread) else self.value
        return end if math.isfinite(end) else self.length if math.isfinite(self.length) else 0.0

    @property
    def text(self) -> str:
        """The value as people write it."""
        return str(self.value) if isinstance(self.value, Spread) else number(self.value)


class Group(NamedTuple):
    """Bars that compare with one another: they share a scale. The last one is the one to look at."""

    title: str
    bars: Sequence[Bar]


class Line(NamedTuple):
    """Points (x, y) in the order of x."""

    label: str
    points: Sequence[tuple[float, float]]


def bars(title: str, groups: Sequence[Group], note: str = "") -> str:
    """Return groups of horizontal bars, each group on its own scale from zero. What is not finite has no bar."""
    body, y = [], 34
    for group in groups:
        y += 4
        for line in _wrap(group.title, WIDTH - 24):
            y += _LINE
            body.append(_text(12, y, line, "start"))
        y += 8
        largest = max((bar.end for bar in group.bars), default=0.0) or 1.0
        for index, bar in enumerate(group.bars):
            colour = _COLOURS[2] if index == len(group.bars) - 1 else _COLOURS[index % 2]
            body += _bar(bar, y, largest, colour)
            y += _BAR + _GAP
    facts = "; ".join(f"{g.title}: " + ", ".join(f"{b.label} {b.text}" for b in g.bars) for g in groups)
    return _document(title, facts, body, y + 8, note)


def _bar(bar: Bar, y: int, largest: float, colour: str) -> list[str]:
    room = WIDTH - _LEFT - _RIGHT
    length = room * bar.length / largest if math.isfinite(bar.length) else 0.0
    high = room * bar.end / largest
    parts = [
        _text(_LEFT - 8, y + 15, bar.label, "end", room=_LEFT - 16),
        f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_BAR}" fill="{colour}"/>',
    ]
    if isinstance(bar.value, Spread) and bar.value.count > 1 and math.isfinite(bar.value.low):
        low, middle = room * bar.value.low / largest, y + _BAR / 2
        ends = f'x1="{_LEFT + low:.1f}" y1="{middle:.1f}" x2="{_LEFT + high:.1f}" y2="{middle:.1f}"'
        parts.append(f'<line class="w" {ends}/>')
    right = _LEFT + max(length, high) + 6
    return [*parts, _text(right, y + 15, bar.text, "start", room=WIDTH - right - 6)]


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

    Infinite ones are counted, so that the line ends below 100; NaN, which is no value, is not.
    """
    ordered = sorted(value for value in values if not math.isnan(value))
    step = max(1, len(ordered) // points)
    chosen = sorted({*range(0, len(ordered), step), len(ordered) - 1}) if ordered else []
    return [(ordered[index], 100 * (index + 1) / len(ordered)) for index in chosen]


def _text(x: float, y: float, content: str, anchor: str, kind: str = "", room: float = math.inf) -> str:
    """Return a line of text, drawn narrower where it would take more than `room`."""
    style = f' class="{kind}"' if kind else ""
    if len(content) * _CHARACTER[kind] > room:
        style += f' textLength="{room:.0f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(content)}</text>'


def _document(title: str, facts: str, body: Sequence[str], height: float, note: str) -> str:
    titled, noted = _wrap(title, WIDTH - 24, "t"), _wrap(note, WIDTH - 24, "n")
    # The first line of the title has its place in the body; further ones move the body down.
    down = _LINE * max(0, len(titled) - 1)
    whole = height + down + 8 + 15 * len(noted)
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
        *(_text(12, 24 + _LINE * index, line, "start", "t") for index, line in enumerate(titled)),
        f'<g transform="translate(0 {down})">',
        *body,
        *notes,
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _wrap(text: str, room: float, kind: str = "") -> list[str]:
    """Return the text in lines that take at most `room`; a word longer than that is divided."""
    return textwrap.wrap(text, int(room / _CHARACTER[kind]), break_on_hyphens=False)


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers from low to high."""
    extent = (high - low) or 1.0
    # Not below what a float holds with all its digits: a fifth of less may be nothing.
    raw = max(extent / 5, sys.float_info.min)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten from low to high."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for power in powers for factor in (1, 2, 5) if low <= (value := factor * 10.0**power) <= high]
