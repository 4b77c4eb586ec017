"""`python -m tests.acceptance.native`: the kernels' own test program on every variant, under sanitizers and emulators.

Haswell is a processor with AVX2 and nothing newer, Nehalem one with neither: both must choose the variant they can run.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from tests.kernels.cpu.native_program import BuildError, build_program

from .running import Row, run

EMULATED = {"Haswell": "avx2", "Nehalem": "portable"}


def main() -> None:
    """Build and run each, print what it did; the exit status is 1 if one fell short."""
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        sys.exit("qemu-x86_64 is not installed: install qemu-user (Debian: apt-get install qemu-user).")
    try:
        plain = build_program()
        rows = [
            checked([plain]),
            checked([build_program("address,undefined")]),
            checked([build_program("thread")]),
            *(checked([emulator, "-cpu", cpu, plain], chosen) for cpu, chosen in EMULATED.items()),
        ]
    except BuildError as error:
        sys.exit(str(error))
    table = Table("command", "figure", "passed", "seconds")
    for row in rows:
        table.add_row(row.command, row.figure, "yes" if row.passed else "NO", f"{row.seconds:.0f}")
    Console().print(table)
    if not all(row.passed for row in rows):
        sys.exit(1)


def checked(command: Sequence[str | Path], chosen: str = "") -> Row:
    """Run the program; it passed if it said so, and chose that variant."""
    ran = run([str(part) for part in command], environment={"OCTAVO_CPU_ISA": ""})
    figure = ran.line("checks")
    return Row(
        8, ran.command, figure, ran.code == 0 and figure.endswith(f"chosen: {chosen}" if chosen else ""), ran.seconds
    )


if __name__ == "__main__":
    typer.run(main)
