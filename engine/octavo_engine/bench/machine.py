"""What a figure was taken on: processor, threads, instruction set, load, date."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from octavo_engine import release
from octavo_engine.worker.cgroup import compute_threads


class Machine(msgspec.Struct, frozen=True):
    """A machine at a moment. `isa` is the kernels' instruction-set variant, "" if no native kernels run.

    `commit` is the checkout's that Octavo runs from, "" if none; `role` what the machine did, "" if it is the one that
    was measured.
    """

    cpu: str
    cores: int
    threads: int
    isa: str
    load: float
    date: str
    octavo: str
    python: str
    commit: str = ""
    role: str = ""

    def sentence(self) -> str:
        """Return it as one line below a table."""
        isa = f", {self.isa} kernels" if self.isa else ""
        role = f"{self.role}: " if self.role else ""
        commit = f" at {self.commit}" if self.commit else ""
        return (
            f"{role}{self.cpu}, {self.cores} cores, {self.threads} threads{isa}, load {self.load:.1f} at the start, "
            f"Octavo {self.octavo}{commit}, Python {self.python}, {self.date}"
        )


def describe_machine(threads: int = 0, isa: str = "", role: str = "") -> Machine:
    """Return this machine now; `threads` and `isa` as the engine under test states them (0: what it would take).

    `role` is for a machine that is not the one measured, such as "load generator".
    """
    return Machine(
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        threads=threads or compute_threads(),
        isa=isa,
        load=os.getloadavg()[0],
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        octavo=release.version(),
        python=platform.python_version(),
        commit=release.commit(),
        role=role,
    )


def cpu_name() -> str:
    """Return the processor's name as the kernel tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
