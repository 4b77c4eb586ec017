"""Pictures of runs as SVG text: what was asked, the replicas of each policy, and how the objective was kept. Pure.

Three panels over one time axis. Each picture has a title, a description for those who do not see it, and its numbers
in the key; it is readable on a light and on a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 820
LEFT: Final = 62
RIGHT: Final = 20
COLOURS: Final = (
    "#c2571a", "#1f6fb4", "#2c7a51", "#6b3fa0", "#a07a00", "#b03060",
    "#3f7f8f", "#7f7f7f", "#8c564b", "#5b8db8", "#556b2f", "#222222",
)  # fmt: skip
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#1b1f24}.t{font-weight:600;font-size:15px}.n{font-size:11px;fill:#57606a}"
    ".g{stroke:#d0d7de}.p{fill:#fff}.l{fill:none;stroke-width:1.8}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.n{fill:#9198a1}.g{stroke:#3d444d}.p{fill:#0d1117}}"
)


class Line(NamedTuple):
    """Points (x, y) in the order of x. `steps`: y holds until the next x."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str = COLOURS[0]
    steps: bool = False
    dots: bool = False


class Panel(NamedTuple):
    """Lines on one scale from zero. `top` fixes the scale's end; None takes the highest value."""

    title: str
    lines: Sequence[Line]
    top: float | None = None
    bottom: float = 0.0


def stacked(
    title: str, x_label: str, panels: Sequence[Panel], key: Sequence[tuple[str, str]], height: int = 170
) -> str:
    """Return panels above one another with one x axis. `key`: (text, colour) of what the colours mean."""
    xs = [x for panel in panels for line in panel.lines for x, _ in line.points] or [0.0, 1.0]
    low, high = min(xs), max(xs)
    body, y = [], 52.0
    for panel in panels:
        body += _panel(panel, low, high, y, height)
        y += height + 44
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, y - 2, x_label, "middle"))
    y += 18
    for text, colour in key:
        body.append(f'<rect x="{LEFT}" y="{y - 9:.0f}" width="22" height="4" fill="{colour}"/>')
        body.append(_text(LEFT + 30, y - 4, text, "start"))
        y += 17
    facts = "; ".join(panel.title for panel in panels) + ". " + "; ".join(text for text, _ in key)
    return _document(title, facts, body, y + 6)


def _panel(panel: Panel, low: float, high: float, top: float, height: float) -> list[str]:
    ys = [y for line in panel.lines for _, y in line.points if math.isfinite(y)] or [1.0]
    highest = panel.top if panel.top is not None else max(ys) * 1.05 or 1.0
    right, down = WIDTH - RIGHT, top + height

    def across(x: float) -> float:
        return LEFT + (right - LEFT) * (x - low) / ((high - low) or 1.0)

    def along(y: float) -> float:
        share = (y - panel.bottom) / ((highest - panel.bottom) or 1.0)
        return down - height * min(1.0, max(0.0, share))

    body = [_text(LEFT, top - 8, panel.title, "start")]
    for tick in _ticks(low, high):
        body.append(f'<line class="g" x1="{across(tick):.1f}" y1="{top}" x2="{across(tick):.1f}" y2="{down}"/>')
        body.append(_text(across(tick), down + 15, f"{tick:g}", "middle", "n"))
    for tick in _ticks(panel.bottom, highest):
        body.append(f'<line class="g" x1="{LEFT}" y1="{along(tick):.1f}" x2="{right}" y2="{along(tick):.1f}"/>')
        body.append(_text(LEFT - 6, along(tick) + 4, f"{tick:g}", "end", "n"))
    for line in panel.lines:
        points = [(across(x), along(y)) for x, y in line.points if math.isfinite(y)]
        body.append(f'<path class="l" stroke="{line.colour}" d="{_path(points, line.steps)}"/>')
        if line.dots:
            body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.colour}"/>' for x, y in points]
    return body


def _path(points: Sequence[tuple[float, float]], steps: bool) -> str:
    parts = []
    for index, (x, y) in enumerate(points):
        if index == 0:
            parts.append(f"M{x:.1f} {y:.1f}")
        elif steps:
            parts.append(f"H{x:.1f}V{y:.1f}")
        else:
            parts.append(f"L{x:.1f} {y:.1f}")
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers from low to high."""
    raw = max((high - low) / 5, 1e-9)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _text(x: float, y: float, content: str, anchor: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(content)}</text>'


def _document(title: str, facts: str, body: Sequence[str], height: float) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-labelledby="title description">'
    )
    parts = [
        head,
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="description">{escape(facts)}</desc>',
        f"<style>{_STYLE}</style>",
        '<rect class="p" width="100%" height="100%"/>',
        _text(12, 24, title, "start", "t"),
        *body,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
