"""Run a command, show what it prints as it prints it, and keep it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = sys.executable


class Ran(NamedTuple):
    """A finished command; `output` is both streams together."""

    command: str
    code: int
    output: str
    seconds: float

    def line(self, pattern: str) -> str:
        """Return the first printed line in which the pattern is found, else an empty text."""
        lines = (line.strip() for line in self.output.splitlines())
        return next((line for line in lines if re.search(pattern, line)), "")


class Row(NamedTuple):
    """One figure of one acceptance line."""

    line: int
    command: str
    figure: str
    passed: bool
    seconds: float


def run(
    command: Sequence[str],
    *,
    folder: Path = REPOSITORY,
    environment: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> Ran:
    """Run it to its end. A command's own exit code decides, whatever it prints."""
    shown = " ".join(command).replace(PYTHON, "python")
    if not quiet:
        print(f"$ {shown}", file=sys.stderr, flush=True)
    began = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if not quiet:
                print(f"  {line}", end="", file=sys.stderr, flush=True)
    return Ran(shown, process.returncode, "".join(lines), time.monotonic() - began)


def pytest(*arguments: str, quiet: bool = False) -> Ran:
    """Run pytest in the repository."""
    return run([PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments], quiet=quiet)


def collected(*arguments: str) -> list[str]:
    """Return the node ids that pytest collects. Raises RuntimeError if it cannot."""
    ran = pytest("--collect-only", *arguments, quiet=True)
    if ran.code:
        raise RuntimeError(f"'{ran.command}' failed:\n{ran.output[-3000:]}")
    return [line.strip() for line in ran.output.splitlines() if "::" in line]
