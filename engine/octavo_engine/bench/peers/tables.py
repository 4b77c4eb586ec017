"""The peers' figures and the ratios, for people and for `--json`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from octavo_engine.bench.peers.measure import Measured
from octavo_engine.bench.peers.notes import LeftOut
from octavo_engine.bench.peers.ratio import Ratio, ratios
from octavo_engine.bench.peers.schedule import Group
from octavo_engine.bench.report import Table
from octavo_engine.bench.statistics import Spread, number, spread


class Figure(msgspec.Struct, frozen=True):
    """One contender at one point, in tokens a second."""

    point: str
    contender: str
    title: str
    rate: Spread
    rounds: list[float]
    perplexity: float | None


class Compared(msgspec.Struct, frozen=True):
    """What `--json` holds. `machine_load` is the load average before each run; two threads alone make 2."""

    figures: list[Figure]
    ratios: list[Ratio]
    best_batch: dict[str, int]
    batch_rates: dict[str, dict[int, float]]
    machine_load: Spread | None


def compare(measured: Measured, perplexities: Mapping[str, float | None]) -> Compared:
    """Return the figures; perplexities by contender, as far as they are known."""
    figures = [
        Figure(
            point=point.title,
            contender=name,
            title=measured.titles[name],
            rate=spread(rates),
            rounds=list(rates),
            perplexity=perplexities.get(name),
        )
        for group in measured.groups
        for name, point in group.entries
        if (rates := measured.figures.get((point.name, name)))
    ]
    loads = spread(measured.loads) if measured.loads else None
    return Compared(figures, ratios(measured.figures), measured.best_batch, measured.batch_rates, loads)


def tables(measured: Measured, found: Compared) -> list[Table]:
    """Return a table a group, and one of the ratios."""
    made = [_figures(group, found.figures) for group in measured.groups]
    return [*made, _ratios(found, measured.titles)]


def left_out(left: Sequence[LeftOut]) -> Table:
    """Return who has no figures, or not all, and why."""
    return Table("left out", ("", "of", "why"), [(one.title, one.of or "everything", one.why) for one in left])


def _figures(group: Group, figures: Sequence[Figure]) -> Table:
    wanted = {(point.title, name) for name, point in group.entries}
    rows = [
        (
            figure.title if figure.point == group.title else f"{figure.title}: {figure.point}",
            str(figure.rate),
            "" if figure.perplexity is None else number(figure.perplexity),
        )
        for figure in figures
        if (figure.point, figure.contender) in wanted
    ]
    return Table(group.title, ("", "tok/s: median (lowest–highest)", "perplexity"), rows)


def _ratios(found: Compared, titles: Mapping[str, str]) -> Table:
    rows = [
        (
            f"{ratio.point}: {ratio.title}",
            f"{titles[ratio.ours]} ÷ {titles[ratio.best]}",
            str(ratio.ratio),
            f"≥ {ratio.least:g}",
            "yes" if ratio.kept else "no",
        )
        for ratio in found.ratios
    ]
    note = "each round's figures paired"
    if found.machine_load is not None:
        note += f"; load average {found.machine_load}"
    return Table("ratios", ("", "", "ratio: median (lowest–highest)", "promised", "kept"), rows, note)
