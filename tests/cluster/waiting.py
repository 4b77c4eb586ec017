"""Poll with a deadline. A wait that runs out says what it waited for and which log to read."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from .errors import ClusterError

Found = TypeVar("Found")


def wait_until(
    check: Callable[[], Found],
    seconds: float,
    what: str,
    *,
    ignore: tuple[type[Exception], ...] = (),
    blame: Callable[[], str] = lambda: "",
    interval: float = 0.1,
    cancelled: threading.Event | None = None,
) -> Found:
    """The first true value of `check`; errors of the types in `ignore` mean 'not yet' and are told at the end."""
    deadline = time.monotonic() + seconds
    last: Exception | None = None
    while True:
        try:
            if found := check():
                return found
            last = None
        except ignore as error:
            last = error
        if time.monotonic() > deadline:
            reason = f" ({last})" if last else ""
            raise ClusterError(f"{what}: not within {seconds:.0f} s{reason}\n{blame()}".rstrip())
        if cancelled is None:
            time.sleep(interval)
        elif cancelled.wait(interval):
            raise ClusterError(f"{what}: given up, something else failed first")
