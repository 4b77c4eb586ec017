"""Blocking work beside the event loop that does not keep the process from leaving."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises.

    Unlike `asyncio.to_thread`, the end of the loop does not wait for it: a download must not hold up a SIGTERM.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def succeed(value: T) -> None:
        if not result.done():
            result.set_result(value)

    def fail(error: Exception) -> None:
        if not result.done():
            result.set_exception(error)

    def run() -> None:
        # The loop may have ended without waiting for this.
        with contextlib.suppress(RuntimeError):
            try:
                value = work()
            except Exception as error:  # noqa: BLE001 - raised again where it is waited for
                loop.call_soon_threadsafe(fail, error)
            else:
                loop.call_soon_threadsafe(succeed, value)

    threading.Thread(target=run, daemon=True).start()
    return await result
