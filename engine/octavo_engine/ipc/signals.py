"""SIGTERM and SIGINT are the API process's business, though a process group, or a service, gets them as a whole."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def held_back() -> Iterator[None]:
    """Block the signals while a child is started: it begins with them blocked, so none ends it before it ignores them.

    Call it on the thread that starts the child, and nowhere else: an event loop may go on meanwhile.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        # Those alone: somebody else may be starting a child beside this one.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, set(ENDING) - before)


def leave_to_parent() -> None:
    """Ignore the signals, those that wait included: the API process drains first, and ends its children itself."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
