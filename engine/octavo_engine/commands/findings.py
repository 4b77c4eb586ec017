"""What `octavo doctor` found, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ISA_VARIABLE: Final = "OCTAVO_CPU_ISA"

Row = tuple[str, str]


@dataclass
class Findings:
    """What was found. `lacking`: each a sentence with its remedy, without which nothing can be served.

    tables: rows by title. notes: what can be better, or what is to be done first. ready: models that can be served at
    once. memory_left: in bytes, None if that could not be asked. variant, threads: of the kernels, "" and 0 without.
    """

    tables: dict[str, list[Row]] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)
    memory_left: int | None = None
    variant: str = ""
    threads: int = 0

    def verdict(self) -> Iterator[str]:
        """Yield the lines that say what would work."""
        yield "Serving on a GPU is not offered yet: --device is cpu or auto."
        for note in self.notes:
            yield f"Note: {note}"
        for sentence in self.lacking:
            yield f"Lacking: {sentence}"
        if self.lacking:
            yield "Verdict: octavo serve does not work here, for what is lacking."
            return
        memory = "" if self.memory_left is None else f" and {size(self.memory_left)} of memory"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        model = self.ready[0] if self.ready else "MODEL"
        yield (
            f"Verdict: octavo serve works here, on the CPU, with {self.variant} kernels, {threads}{memory}. "
            f"Try: octavo serve {model}"
        )


def size(count: int) -> str:
    """Return bytes as a person reads them."""
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if count >= 1 << power:
            return f"{count / 2**power:.1f} {unit}"
    return f"{count / 2**10:.0f} KiB"


def lines(path: Path) -> list[str]:
    """Return a file's lines, none of one that cannot be read."""
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
