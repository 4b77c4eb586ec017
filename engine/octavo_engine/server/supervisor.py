"""One engine process after another: started, watched, ended when it hangs, started again while the budget lasts.

Every engine has pipes of its own, so that nothing an earlier one said is taken for the next one's. No request is
replayed: those that were open have their error frame before the next engine is asked for anything.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
from collections import deque
from collections.abc import Callable

import msgspec

from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.launch import spawn_engine
from octavo_engine.ipc.messages import Shutdown
from octavo_engine.ipc.transport import PeerGone, ServerEndpoint
from octavo_engine.server.engine_client import EngineClient
from octavo_engine.server.engine_process import EngineProcess

log = logging.getLogger(__name__)


class RestartBudget:
    """At most `most` restarts within any `window` seconds."""

    def __init__(self, most: int, window: float) -> None:
        """Begin with none made."""
        self.most = most
        self.window = window
        self._made: deque[float] = deque()

    def take(self, now: float) -> bool:
        """Count a restart at monotonic time `now`; False if there is none left."""
        while self._made and now - self._made[0] >= self.window:
            self._made.popleft()
        if len(self._made) >= self.most:
            return False
        self._made.append(now)
        return True


class Supervisor:
    """Keeps an engine at the client's disposal."""

    def __init__(
        self,
        client: EngineClient,
        spawned: subprocess.Popen[bytes],
        budget: RestartBudget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the process `spawned`, which waits for its configuration."""
        self._client = client
        self._spawned = spawned
        self._budget = budget
        self._clock = clock
        self._link: ServerEndpoint | None = None
        self._process: EngineProcess | None = None

    async def run(self, config: EngineConfig) -> None:
        """Run engines until one fails before its model was ever loaded, or too many have: `client.failure` says why."""
        client = self._client
        process = self._spawned
        while True:
            await self._live(process, config)
            if not client.was_ready:
                return
            if not self._budget.take(self._clock()):
                log.error(
                    "%s It is not started again: the limit is %d restarts within %.0f s (--engine-restarts).",
                    client.stopped_sentence,
                    self._budget.most,
                    self._budget.window,
                )
                return
            log.warning("%s It is started again; no request is repeated.", client.stopped_sentence)
            process = spawn_engine()

    async def _live(self, process: subprocess.Popen[bytes], config: EngineConfig) -> None:
        """Run one engine until it has failed, and its process has ended."""
        client = self._client
        self._link = link = ServerEndpoint()
        config = msgspec.structs.replace(config, socket_folder=str(link.folder))
        client.connect(link)

        def on_exit(reason: str) -> None:
            # An engine that was ended for hanging may be told of when the next one runs.
            if self._link is link:
                client.fail(reason)

        self._process = running = EngineProcess(process, config, on_exit)
        tasks = [asyncio.create_task(client.run()), asyncio.create_task(client.watch())]
        failed = asyncio.create_task(client.failed.wait())
        try:
            # What ends a task that works is a fault of ours, and ends this one.
            done, _ = await asyncio.wait({*tasks, failed}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
            await failed
        finally:
            for task in (*tasks, failed):
                task.cancel()
            await asyncio.gather(*tasks, failed, return_exceptions=True)
        await running.end()
        link.close()
        self._link = self._process = None

    async def close(self) -> None:
        """Tell the engine to leave, and see that it does. `run` must not run any more."""
        if self._link is None or self._process is None:
            return
        try:
            self._link.send(Shutdown())
        except PeerGone:
            log.debug("The engine has gone before it was told to.")
        await self._process.stop()
        self._link.close()
