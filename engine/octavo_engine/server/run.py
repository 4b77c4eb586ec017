"""The API process from its first socket to its exit code: listen, load, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import uvicorn
from starlette.types import ASGIApp

from octavo_engine import contract
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.messages import Progress
from octavo_engine.ipc.vocabulary import Vocabulary, write_vocabulary
from octavo_engine.model.pull import PullError, pull
from octavo_engine.model.source import ModelNotFoundError
from octavo_engine.model.spec import UnsupportedModelError
from octavo_engine.server.adapter_file import AdapterFile, AdapterFileError
from octavo_engine.server.adapters import Adapters
from octavo_engine.server.app import admin_application, public_application
from octavo_engine.server.counters import Counters
from octavo_engine.server.drain_log import DrainLog, requests_open
from octavo_engine.server.engine_client import EngineClient
from octavo_engine.server.errors import UNAVAILABLE, ApiError
from octavo_engine.server.http_protocol import BACKLOG, uvicorn_config
from octavo_engine.server.keys import KeyFileError
from octavo_engine.server.lifecycle import Lifecycle, Phase
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.state import ServerState
from octavo_engine.server.supervisor import RestartBudget, Supervisor
from octavo_engine.server.threads import in_thread
from octavo_engine.server.tokenize_pool import TokenizePool, TokenizerUnavailable
from octavo_engine.server.tokenizer import TextModel, TokenizerError, load_tokenizer
from octavo_engine.server.watchdog import Watchdog

log = logging.getLogger(__name__)

EXIT_DRAINED: Final = 0
EXIT_FAILED: Final = 1
EXIT_SIGNALLED: Final = 128
"""Plus the number of the signal that ended the process at once: what a shell reports of a killed one."""
FLUSH_SECONDS: Final = 3.0
"""How long the last frames may take to reach clients that still read; with what follows, well within
`contract.TERMINATION_MARGIN_SECONDS`."""

Report = Callable[[str, float], None]
"""Tells a person how loading goes: stage, fraction."""


class StartError(Exception):
    """The server cannot start; the message is one sentence with the remedy."""


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: when to end is the lifecycle's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def _uvicorn(application: ASGIApp) -> _Server:
    return _Server(uvicorn_config(application, timeout_graceful_shutdown=int(FLUSH_SECONDS)))


def listen(host: str, port: int, flag: str) -> socket.socket:
    """Return a bound socket. Raises StartError if the address cannot be had; `flag` names what to change."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        raise StartError(
            f"Cannot listen on {host} port {port} ({error.strerror}): choose another with {flag}."
        ) from error
    bound.setblocking(False)
    return bound


def _raise_file_limit() -> None:
    """Allow as many connections as the machine does: every waiting client is an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class ApiProcess:
    """One run of the API process."""

    def __init__(
        self,
        settings: ServerSettings,
        engine: EngineConfig,
        spawned: subprocess.Popen[bytes],
        report: Report,
        on_ready: Callable[[str], None],
    ) -> None:
        """Prepare a run; `engine.model` is the model's URI, its `socket_folder` is filled in here.

        spawned: an engine process that waits for its configuration (`spawn_engine`). A run that ends before that leaves
        it as it is; it ends with its standard input.
        """
        self._spawned = spawned
        self._settings = settings
        self._engine = engine
        self._report = report
        self._on_ready = on_ready
        self._signals: list[signal.Signals] = []
        self._drain_log = DrainLog()
        self._lifecycle = Lifecycle(settings.drain_propagation, settings.drain_timeout)
        self._changed = asyncio.Event()
        self._lifecycle.on_change = self._changed.set
        self._pool: TokenizePool | None = None
        self._following: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Serve until drained, forced out or failed; return the exit code. Raises StartError before it serves."""
        _raise_file_limit()
        settings = self._settings
        public = listen(settings.host, settings.port, "--port")
        admin = listen("127.0.0.1", settings.admin_port, "--admin-port")
        counters = Counters()
        client = EngineClient(counters, settings.health_timeout, self._on_progress, max_adapters=settings.max_adapters)
        self._state = state = ServerState(settings, client, counters, self._lifecycle)
        try:
            servers = [_uvicorn(public_application(state)), _uvicorn(admin_application(state))]
        except KeyFileError as error:
            raise StartError(str(error)) from error
        self._handle_signals()
        tasks = [
            asyncio.create_task(server._serve([bound])) for server, bound in zip(servers, (public, admin), strict=True)
        ]
        try:
            with Watchdog(asyncio.get_running_loop(), contract.LOOP_TIMEOUT_SECONDS):
                return await self._serve(client, _url(public))
        finally:
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*tasks)

    def _on_progress(self, progress: Progress) -> None:
        self._report(progress.stage, progress.fraction)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        """The first signal drains, the second ends at once. Ctrl-C waits for no endpoints to spread."""
        self._signals.append(number)
        if len(self._signals) > 1:
            log.info("Ending at once: %s.", requests_open(self._lifecycle.open_exchanges))
            self._lifecycle.abort()
            return
        by_hand = number is signal.SIGINT and sys.stderr.isatty()
        hint = "; press Ctrl-C again to end at once" if by_hand else ""
        self._drain_log.begin(time.monotonic(), self._lifecycle.open_exchanges, hint)
        self._lifecycle.drain(time.monotonic(), propagate=number is signal.SIGTERM)

    async def _serve(self, client: EngineClient, url: str) -> int:
        budget = RestartBudget(self._settings.engine_restarts, contract.ENGINE_RESTART_WINDOW_SECONDS)
        supervisor = Supervisor(client, self._spawned, budget)
        working = asyncio.create_task(self._work(supervisor, client, url))
        ending = asyncio.create_task(self._ended())
        try:
            await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                try:
                    await working
                except StartError as error:
                    if not self._lifecycle.draining:
                        raise
                    # A program that was at work for the start, such as pip, may have been told to end, too.
                    log.info("Told to end while starting: %s", error)
                    return await self._leave(client, drained=True)
            if client.failure is not None and not client.was_ready:
                raise StartError(client.failure)
            return await self._leave(client, drained=ending.done())
        finally:
            for task in (working, ending):
                task.cancel()
            await asyncio.gather(working, ending, return_exceptions=True)
            if self._following is not None:
                self._following.cancel()
                await asyncio.gather(self._following, return_exceptions=True)
            if self._pool is not None:
                await self._pool.close()
            await supervisor.close()

    # --- Loading ---
    async def _work(self, supervisor: Supervisor, client: EngineClient, url: str) -> None:
        """Fetch the model, start the tokenisers beside the engine, and keep that running until it cannot be."""
        model = self._engine.model
        if not model.startswith("scripted://"):
            try:
                model = str(await in_thread(lambda: pull(model, self._report)))
            except (PullError, ModelNotFoundError, UnsupportedModelError, OSError) as error:
                raise StartError(str(error)) from error
        with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
            await self._work_in(Path(folder), supervisor, client, model, url)

    async def _work_in(self, folder: Path, supervisor: Supervisor, client: EngineClient, model: str, url: str) -> None:
        vocabulary = folder / "vocabulary"
        config = msgspec.structs.replace(self._engine, model=model, vocabulary=str(vocabulary))
        running = asyncio.create_task(supervisor.run(config))
        getting_ready = asyncio.create_task(self._get_ready(model, vocabulary, client, url))
        pending = {running, getting_ready}
        try:
            while not running.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    await task
        finally:
            for task in (running, getting_ready):
                task.cancel()
            await asyncio.gather(running, getting_ready, return_exceptions=True)

    async def _get_ready(self, model: str, vocabulary: Path, client: EngineClient, url: str) -> None:
        self._pool = pool = TokenizePool(model, self._settings.health_timeout)
        try:
            self._state.text_model, _ = await asyncio.gather(
                in_thread(lambda: _load_text_model(model, vocabulary)), pool.start()
            )
        except (TokenizerError, TokenizerUnavailable, OSError, EOFError) as error:
            raise StartError(f"The tokenizer cannot be loaded: {error}") from error
        await client.ready_event.wait()
        await self._load_adapters(client.adapters)
        self._state.jobs = pool
        self._on_ready(url)

    async def _load_adapters(self, adapters: Adapters) -> None:
        """Load what the command line names, and follow the file that it names."""
        settings = self._settings
        for name, folder in settings.adapters:
            self._report(f"loading the adapter {name}", 0.0)
            try:
                await adapters.load(name, folder, settings.served_names)
            except ApiError as error:
                raise StartError(f"--lora-modules {name}={folder}: {error.message}") from error
        if settings.adapters_file is None:
            return
        try:
            file = AdapterFile(settings.adapters_file, adapters, settings.served_names)
        except AdapterFileError as error:
            raise StartError(str(error)) from error
        await file.look()
        self._following = asyncio.create_task(file.follow())

    # --- The end ---
    async def _ended(self) -> None:
        """Wait for the end of a drain, or for being told to leave at once."""
        while self._lifecycle.phase(time.monotonic()) is not Phase.ENDED:
            self._changed.clear()
            now = time.monotonic()
            if self._lifecycle.draining:
                self._drain_log.begin(now, self._lifecycle.open_exchanges)
            looks = (self._drain_log.update(now, self._lifecycle.open_exchanges), self._lifecycle.seconds_to_next(now))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min((look for look in looks if look is not None), default=None)):
                    await self._changed.wait()

    async def _leave(self, client: EngineClient, drained: bool) -> int:
        """Give what is still open its error frame, and say how it ended."""
        if not drained:
            code = EXIT_FAILED
        else:
            code = EXIT_SIGNALLED + self._signals[-1] if self._lifecycle.aborted else EXIT_DRAINED
            cut = self._lifecycle.open_exchanges
            if cut:
                log.warning("The drain is over and %s: cut off.", requests_open(cut))
            else:
                log.info("Drained: no request is open.")
        error = ApiError(503, "The server shut down before the answer ended.", UNAVAILABLE, code="shutdown")
        client.fail_open(error)
        if self._pool is not None:
            self._pool.fail(error)
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                while self._lifecycle.open_exchanges:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("%d clients do not read; their connections are cut.", self._lifecycle.open_exchanges)
        return code


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"


def _load_text_model(model: str, vocabulary: Path) -> TextModel:
    """Load the text side of a model, and write its tokens down for the engine."""
    text_model = load_tokenizer(model)
    no_text = text_model.special_ids | text_model.control_ids
    write_vocabulary(vocabulary, Vocabulary(list(text_model.token_bytes), tuple(sorted(no_text))))
    return text_model
