"""Ends the process when its event loop has stopped turning: nobody is answered then, not even a probe.

So that the container's liveness probe may be patient: while an engine is started again the API process is well.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

EXIT_STUCK: Final = 1
LOOKS: Final = 12
"""A process that was stopped as a whole misses one of them, not several."""


class Watchdog:
    """A thread that asks the loop for a sign of life."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, end: Callable[[], None] | None = None) -> None:
        """Call `end` (default: tell where every thread is, and exit) when `loop` has not turned for so long."""
        self._loop = loop
        self._look = seconds / LOOKS
        self._end = end or (lambda: _exit(seconds))
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Watch no more."""
        self._closing.set()

    def _watch(self) -> None:
        while not self._closing.is_set():
            turned = threading.Event()
            try:
                self._loop.call_soon_threadsafe(turned.set)
            except RuntimeError:
                return  # the loop is closed
            if not any(turned.wait(self._look) or self._closing.is_set() for _ in range(LOOKS)):
                self._end()
                return
            self._closing.wait(self._look)


def _exit(seconds: float) -> None:
    print(
        f"The server has done nothing for {seconds:.0f} s and ends; its threads were here:", file=sys.stderr, flush=True
    )
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(EXIT_STUCK)
