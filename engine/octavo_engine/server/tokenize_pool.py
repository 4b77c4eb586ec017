"""Reading requests outside the API process's interpreter: two lanes, so that a huge prompt holds up no small one.

A lane is one process and a bounded queue; a process that dies, falls silent or takes too long is replaced. A job under
which it died or fell silent is done once more on a fresh one: only what two do not survive, or what takes too long,
fails. Jobs whose client has gone are dropped. An idle process is asked for a sign of life from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from octavo_engine import contract
from octavo_engine.ipc import signals
from octavo_engine.server import frames
from octavo_engine.server.errors import ApiError, queue_full, unavailable
from octavo_engine.server.exchange import SMALL_BODY
from octavo_engine.server.jobs import Answer, Job, Prepared, Refusal
from octavo_engine.server.signs_of_life import SilentError, cpu_seconds, watched

log = logging.getLogger(__name__)

MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Bytes of all bodies that wait for one lane; one more is refused (429)."""
JOB_SECONDS: Final = 120.0
"""A job that takes longer is broken off, though its process is at work. Templates have their own, much shorter limit,
and tokenising is linear: this is the last resort, generous because the engine's threads go first on a busy machine."""
RESTART_SECONDS: Final = 1.0
"""Wait before a process is started again that died before it was ready."""
KILL_SECONDS: Final = 5.0
"""How long one may take to be gone that was killed: the kernel lets one that waits for a disk go only afterwards."""

_Result = TypeVar("_Result")


class TokenizerUnavailable(Exception):
    """No tokenising process can load the model's tokenizer; the message is one sentence with the remedy."""


class _Waiting:
    __slots__ = ("done", "job")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.done: asyncio.Future[Prepared | Answer] = asyncio.get_running_loop().create_future()


class Lane:
    """One tokenising process and the jobs that wait for it."""

    def __init__(
        self,
        source: str,
        nice: int,
        job_seconds: float = JOB_SECONDS,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        silent_seconds: float = contract.HEALTH_TIMEOUT_SECONDS,
    ) -> None:
        """Make a lane for the model at `source`, its process `nice` steps behind the API process.

        silent_seconds: how long the process may do nothing while it has something to do.
        """
        self._source = source
        self._nice = nice
        self._job_seconds = job_seconds
        self._silent_seconds = silent_seconds
        self._silent = self._down = False
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._process: Process | None = None
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting_bytes = 0

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        return None if self._process is None else self._process.pid

    @property
    def answers(self) -> bool:
        """Whether a job would be done now: False while the process does nothing, or is started again."""
        return not (self._silent or self._down)

    async def run(self, job: Job) -> Prepared | Answer:
        """Do a job. Raises ApiError: the request's own fault (4xx), or a full lane (429)."""
        if self._waiting_bytes + len(job.body) > self._max_waiting_bytes:
            raise queue_full("Too many requests are waiting to be read. Retry later.")
        waiting = _Waiting(job)
        self._queue.append(waiting)
        self._waiting_bytes += len(job.body)
        self._arrived.set()
        try:
            return await waiting.done
        finally:
            self._waiting_bytes -= len(job.body)
            # A client that has gone takes its job out of the queue, unless the process has it already.
            with contextlib.suppress(ValueError):
                self._queue.remove(waiting)

    async def start(self) -> None:
        """Start the process and wait until it has loaded. Raises TokenizerUnavailable."""
        with signals.held_back():
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "octavo_engine.server.tokenize_worker", self._source, str(self._nice),
                stdin=PIPE, stdout=PIPE,
            )  # fmt: skip
        hello = frames.read_hello(await _read_frame(process))
        if hello.error:
            await self.stop()
            raise TokenizerUnavailable(hello.error)
        self._silent = self._down = False

    async def serve(self) -> None:
        """Work the queue off until cancelled, starting the process again when it dies, idle or not."""
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._idle()
            waiting = self._queue.popleft()
            if not waiting.done.done():
                await self._do(waiting)

    async def _idle(self) -> None:
        """Wait for a job, or for the end of the process; after a while without either see that it lives."""
        arrived = asyncio.ensure_future(self._arrived.wait())
        ended = None if self._process is None else asyncio.ensure_future(self._process.wait())
        wanted = [arrived] if ended is None else [arrived, ended]
        try:
            await asyncio.wait(wanted, timeout=self._silent_seconds / 2, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in wanted:
                task.cancel()
        if self._process is not None and self._process.returncode is not None:
            await self._died(f"exit code {self._process.returncode}")
        elif self._process is not None and not self._queue:
            try:
                await self._watched(self._ping(self._process))
            except (EOFError, OSError, SilentError) as error:
                await self._died(str(error) or type(error).__name__)
        if self._process is None and self._down:
            await self._restart()

    async def _restart(self) -> None:
        try:
            await self._watched(self.start())
        except (EOFError, OSError, SilentError, TokenizerUnavailable) as error:
            # Another one is started with the next job, which says so if that fails too, or after a while without any.
            log.error("A tokenising process cannot be started (%s).", str(error) or type(error).__name__)
            await self.stop()

    async def _watched(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do what the process, even one that `work` starts, has to do something for. Raises SilentError."""

        def used() -> float:
            return 0.0 if self._process is None else cpu_seconds(self._process.pid)

        def note(silent: bool) -> None:
            self._silent = silent

        result = await watched(work, used, self._silent_seconds, note)
        self._silent = False
        return result

    async def _do(self, waiting: _Waiting) -> None:
        try:
            result = await self._twice(waiting.job)
            if isinstance(result, Refusal):
                raise result.error()
        except ApiError as error:
            _settle(waiting, error)
        except TimeoutError:
            await self.stop()
            limit = f"{self._job_seconds:g} seconds"
            _settle(waiting, unavailable(f"The request took more than {limit} to tokenise. Retry later."))
        except (EOFError, OSError, SilentError, TokenizerUnavailable) as error:
            await self._died(str(error) or type(error).__name__)
            _settle(waiting, unavailable("The request could not be tokenised. Retry later."))
            if isinstance(error, TokenizerUnavailable):
                await asyncio.sleep(RESTART_SECONDS)
        else:
            if not waiting.done.done():
                waiting.done.set_result(result)

    async def _twice(self, job: Job) -> Prepared | Answer | Refusal:
        """Do a job, once more if the process dies or falls silent: that need not have been this job's fault."""
        try:
            return await self._once(job)
        except (EOFError, ConnectionError, SilentError) as error:
            await self._died(str(error) or type(error).__name__)
        return await self._once(job)

    async def _once(self, job: Job) -> Prepared | Answer | Refusal:
        if self._process is None:
            await self._watched(self.start())
        async with asyncio.timeout(self._job_seconds):
            return await self._watched(self._exchange(job))

    async def _died(self, why: str) -> None:
        self._down = True
        log.error("A tokenising process has died (%s); it is started again.", why)
        await self.stop()

    async def _exchange(self, job: Job) -> Prepared | Answer | Refusal:
        process = self._process
        if process is None or process.stdin is None:
            raise EOFError
        process.stdin.write(frames.job_head(job))
        process.stdin.write(job.body)
        await process.stdin.drain()
        return frames.read_result(await _read_frame(process))

    async def _ping(self, process: Process) -> None:
        if process.stdin is None:
            raise EOFError
        process.stdin.write(frames.PING)
        await process.stdin.drain()
        frames.read_hello(await _read_frame(process))

    async def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        self._silent = False
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await process.wait()

    def fail(self, error: ApiError) -> None:
        """End every job that waits."""
        while self._queue:
            _settle(self._queue.popleft(), error)


def _settle(waiting: _Waiting, error: ApiError) -> None:
    if not waiting.done.done():
        waiting.done.set_exception(error)


async def _read_frame(process: Process) -> bytes:
    if process.stdout is None:
        raise EOFError
    size, _ = frames.LENGTHS.unpack(await process.stdout.readexactly(frames.LENGTHS.size))
    return await process.stdout.readexactly(size)


class TokenizePool:
    """A lane for small requests, and one for large ones at a low priority, started with the first of them."""

    def __init__(self, source: str, silent_seconds: float = contract.HEALTH_TIMEOUT_SECONDS) -> None:
        """Make the pool for the model at `source` (what `load_tokenizer` takes). silent_seconds: as of a lane."""
        self.small = Lane(source, nice=2, silent_seconds=silent_seconds)
        self.large = Lane(source, nice=10, silent_seconds=silent_seconds)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the process of small requests and wait until it has loaded. Raises TokenizerUnavailable."""
        await self.small.start()
        self._tasks = [asyncio.create_task(lane.serve()) for lane in (self.small, self.large)]

    @property
    def answers(self) -> bool:
        """Whether a job of any size would be done now."""
        return self.small.answers and self.large.answers

    async def run(self, job: Job) -> Prepared | Answer:
        """Do a job in the lane of its size."""
        return await (self.small if len(job.body) <= SMALL_BODY else self.large).run(job)

    def fail(self, error: ApiError) -> None:
        """End every job that waits."""
        self.small.fail(error)
        self.large.fail(error)

    async def close(self) -> None:
        """End both processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(self.small.stop(), self.large.stop())
