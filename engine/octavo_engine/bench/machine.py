"""What a figure was taken on: processor, threads, instruction set, load, date."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from octavo_engine.worker.cgroup import compute_threads


class Machine(msgspec.Struct, frozen=True):
    """A machine at a moment. `isa` is the kernels' instruction-set variant, "" if no native kernels run."""

    cpu: str
    cores: int
    threads: int
    isa: str
    load: float
    date: str
    octavo: str
    python: str

    def sentence(self) -> str:
        """Return it as one line below a table."""
        isa = f", {self.isa} kernels" if self.isa else ""
        return (
            f"{self.cpu}, {self.cores} cores, {self.threads} threads{isa}, load {self.load:.1f} at the start, "
            f"Octavo {self.octavo}, Python {self.python}, {self.date}"
        )


def describe_machine(threads: int = 0, isa: str = "") -> Machine:
    """Return this machine now; `threads` and `isa` as the engine under test states them (0: what it would take)."""
    return Machine(
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        threads=threads or compute_threads(),
        isa=isa,
        load=os.getloadavg()[0],
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        octavo=_version(),
        python=platform.python_version(),
    )


def cpu_name() -> str:
    """Return the processor's name as the kernel tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version() -> str:
    try:
        return version("octavo")
    except PackageNotFoundError:
        return "from source"
