"""Tells on standard error how something long goes."""

from __future__ import annotations

import sys
import time
from typing import Final

_REPORT_EVERY: Final = 0.25
"""Fraction of a stage between two lines."""


class LoadingLog:
    """A line per stage, and per quarter of a long one, each with the seconds since the start."""

    def __init__(self) -> None:
        """Begin the clock."""
        self._began = time.monotonic()
        self._stage = ""
        self._told = 0.0

    def report(self, stage: str, fraction: float) -> None:
        """Take a stage and its fraction (0 to 1) in."""
        if stage == self._stage and fraction < self._told + _REPORT_EVERY:
            return
        self._stage, self._told = stage, fraction
        share = f" {fraction:.0%}" if fraction > 0 else ""
        self._say(f"{stage}{share}")

    def ready(self, model: str, url: str) -> None:
        """Say where the server answers."""
        self._say(f"Serving {model} at {url}")

    def exposed(self) -> None:
        """Say that the server is everybody's who reaches this machine."""
        self._say("Whoever reaches this machine may use it; --api-keys-file asks for keys, --host 127.0.0.1 hides it")

    def _say(self, what: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f} s] {what}", file=sys.stderr, flush=True)
