"""The engine process as the API process's child: started, watched, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Final

from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.launch import configure_engine

STOP_SECONDS: Final = 3.0
"""How long an engine that was told to leave may take."""
FAREWELL_SECONDS: Final = 0.5


class EngineProcess:
    """One engine process. `on_exit` is called on the event loop when it has ended, with a sentence that says how."""

    def __init__(self, process: subprocess.Popen[bytes], config: EngineConfig, on_exit: Callable[[str], None]) -> None:
        """Configure a spawned engine and watch it. Call it on the event loop of the main thread."""
        configure_engine(process, config)
        self._process = process
        self._on_exit = on_exit
        self._ended = asyncio.Event()
        self._descriptor = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._exited)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def _exited(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        code = self._process.wait()
        self._ended.set()
        # An engine that ended by itself has said why: its last message may still be on its way.
        delay = FAREWELL_SECONDS if code > 0 else 0.0
        asyncio.get_running_loop().call_later(delay, self._on_exit, _describe(code))

    async def wait(self) -> None:
        """Wait until the process has ended."""
        await self._ended.wait()

    async def end(self) -> None:
        """End it now, if it has not ended, and wait for that."""
        if not self._ended.is_set():
            self._process.kill()
        await self._ended.wait()

    async def stop(self) -> None:
        """Wait for an engine that was told to leave, and end one that does not."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            self._process.kill()
            await self._ended.wait()


def _describe(code: int) -> str:
    if code < 0:
        return f"the engine process was ended by {signal.Signals(-code).name}"
    return f"the engine process ended with exit code {code}"
