"""Whether a process that was given something to do does it: it answers, or its CPU clock goes on.

What takes long keeps that clock going, and so does, from time to time, what a busy machine lets wait. One that is
stopped or deadlocked, or waits for what never comes, does neither. It need not say anything meanwhile: a thread that
ticked would have to wait for native code that holds the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

LOOKS: Final = 12
"""A watcher that was stopped itself for a while, with the process or not, misses one of them, not several."""
_SUSPICIOUS: Final = LOOKS // 2

_Result = TypeVar("_Result")


class SilentError(Exception):
    """The process has done nothing for too long; the message says for how long."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, all its threads, to the nanosecond; 0 of one that has gone."""
    try:
        # How Linux numbers the clocks of processes, which clock_getcpuclockid(3) hides.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


async def watched(
    work: Coroutine[Any, Any, _Result],
    used: Callable[[], float],
    seconds: float,
    note: Callable[[bool], None],
) -> _Result:
    """Return what `work`, which waits for a process, returns.

    used: the process's CPU time. note: told at every look whether it has been silent for half of `seconds`. Raises
    SilentError, with `work` cancelled, when it has been for all of them.
    """
    task = asyncio.ensure_future(work)
    still, before = 0, used()
    try:
        while not (await asyncio.wait({task}, timeout=seconds / LOOKS))[0]:
            now = used()
            still, before = (0 if now != before else still + 1), now
            note(still >= _SUSPICIOUS)
            if still >= LOOKS:
                raise SilentError(f"it has done nothing for {seconds:g} s")
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
