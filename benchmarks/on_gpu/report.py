"""What a run found: figures by section, told line by line as they come, and all of it as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Figure(NamedTuple):
    """One number, and whether it reached what is aimed at. goal: as it is told, empty for none."""

    name: str
    value: float
    unit: str
    goal: str = ""
    held: bool | None = None
    detail: str = ""

    def line(self) -> str:
        """Return it as a line of the table."""
        value = f"{self.value:.1%}" if self.unit == "share" else f"{_number(self.value)} {self.unit}"
        verdict = f"{self.goal}: {'held' if self.held else 'SHORT'}" if self.goal else ""
        return f"  {self.name:<58} {value:>16}  {verdict:<18} {self.detail}".rstrip()


@dataclass
class Section:
    """One section's figures and remarks. failed: sentences, each on something that went wrong."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    def add(self, name: str, value: float, unit: str, *, detail: str = "") -> None:
        """Tell a figure that nothing is aimed at for."""
        self._tell(Figure(name, value, unit, detail=detail))

    def at_least(self, name: str, value: float, unit: str, goal: float, *, detail: str = "") -> None:
        """Tell a figure that ought to be `goal` or more."""
        self._tell(Figure(name, value, unit, f"≥ {_goal(goal, unit)}", value >= goal, detail))

    def at_most(self, name: str, value: float, unit: str, goal: float, *, detail: str = "") -> None:
        """Tell a figure that ought to be `goal` or less."""
        self._tell(Figure(name, value, unit, f"≤ {_goal(goal, unit)}", value <= goal, detail))

    def remark(self, sentence: str) -> None:
        """Tell something that is no figure."""
        self.remarks.append(sentence)
        print(f"  {sentence}", flush=True)

    def fail(self, sentence: str) -> None:
        """Tell what went wrong: the run goes on, and ends with exit status 1."""
        self.failed.append(sentence)
        print(f"  FAILED: {sentence}", flush=True)

    def _tell(self, figure: Figure) -> None:
        self.figures.append(figure)
        print(figure.line(), flush=True)

    @classmethod
    def from_json(cls, name: str, found: dict[str, Any]) -> Section:
        """Return what `as_json` made of a section in another process."""
        figures = [Figure(**figure) for figure in found.get("figures", ())]
        return cls(name, figures, found.get("remarks", []), found["failed"], found.get("seconds", 0.0))

    def as_json(self) -> dict[str, Any]:
        """Return it for the JSON file."""
        return {
            "seconds": round(self.seconds, 2),
            "failed": self.failed,
            "remarks": self.remarks,
            "figures": [figure._asdict() for figure in self.figures],
        }


def sentence_of(error: BaseException) -> str:
    """Return an exception as one sentence on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else "no message"
    return f"{type(error).__name__}: {text[:300]}"


def summary(sections: Sequence[Section]) -> str:
    """Return the goals of a run, one a line."""
    goals = [figure for section in sections for figure in section.figures if figure.goal]
    held = sum(bool(figure.held) for figure in goals)
    return "\n".join([f"{held} of {len(goals)} goals held", *(figure.line() for figure in goals)])


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _goal(goal: float, unit: str) -> str:
    return f"{goal:.0%}" if unit == "share" else f"{goal:g} {unit}"
