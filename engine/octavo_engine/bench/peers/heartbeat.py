"""Say every few seconds how far something is, however long nothing happens in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

EVERY_SECONDS: Final = 10.0

Say = Callable[[str], None]


@contextmanager
def heartbeat(say: Say, line: Callable[[float], str], every: float = EVERY_SECONDS) -> Iterator[None]:
    """Say `line(seconds since the begin)` every so many seconds, by a thread that sleeps meanwhile, until the end."""
    ended, begun = threading.Event(), time.monotonic()

    def beat() -> None:
        while not ended.wait(every):
            say(line(time.monotonic() - begun))

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Requests:
    """How many requests of a run have ended; called with that and with how many there are."""

    def __init__(self, title: str) -> None:
        """Know of none yet."""
        self._title = title
        self._ended = self._all = 0

    def __call__(self, ended: int, whole: int) -> None:
        """Take note."""
        self._ended, self._all = ended, whole

    def line(self, seconds: float) -> str:
        """Return it as a line; before the first one has ended, that it goes on."""
        known = f"{self._ended:,} of {self._all:,} requests ended, " if self._all else ""
        return f"{self._title}: {known}{seconds:.0f} s"
