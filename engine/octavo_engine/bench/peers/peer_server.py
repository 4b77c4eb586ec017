"""A peer's OpenAI server as a process on a loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from octavo_engine import contract
from octavo_engine.bench.http_stream import StreamError, connect, parse_url, request_bytes
from octavo_engine.bench.load import Target
from octavo_engine.bench.peers.contender import ServerCommand
from octavo_engine.bench.peers.driver import cannot_start
from octavo_engine.bench.peers.environment import Environment
from octavo_engine.bench.peers.errors import PeerError

_HOST: Final = "127.0.0.1"
_ASK_EVERY_SECONDS: Final = 0.2
_END_SECONDS: Final = 30.0


def free_port() -> int:
    """Return a port that nobody listens on now: peers cannot choose one themselves and tell."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def peer_server(server: ServerCommand, environment: Environment, port: int) -> Iterator[Target]:
    """Start the server, wait until it is healthy, end it with all that it started on the way out. Raises PeerError."""
    log = environment.folder / "server.log"
    try:
        with log.open("w") as output:
            process = subprocess.Popen(
                server.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment.variables(server.variables),
                start_new_session=True,
            )
    except OSError as error:
        raise cannot_start(server.title, environment, error) from error
    try:
        url = f"http://{_HOST}:{port}"
        _wait_healthy(process, url, server, log)
        yield Target(url, server.model)
    finally:
        _end(process)


def _wait_healthy(process: subprocess.Popen[bytes], url: str, server: ServerCommand, log: Path) -> None:
    deadline = time.monotonic() + server.ready_seconds
    while not asyncio.run(_healthy(url)):
        if process.poll() is not None:
            raise PeerError(f"{server.title} ended with {process.returncode} before it was ready (see {log}).")
        if time.monotonic() > deadline:
            raise PeerError(f"{server.title} was not ready within {server.ready_seconds:g} s (see {log}).")
        time.sleep(_ASK_EVERY_SECONDS)


async def _healthy(url: str) -> bool:
    address = parse_url(url)
    try:
        connection = await connect(address)
    except OSError:
        return False
    try:
        return (await connection.request(request_bytes(address, "GET", contract.PATH_HEALTH))).status == 200
    except (OSError, StreamError):
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server's whole session: vLLM's engine is a child of its server."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        # Its group may be gone already.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
