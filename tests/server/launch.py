"""Runs the real thing: `octavo serve` as a process on free loopback ports, and clients for it."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

START_SECONDS = 60.0
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Shared, because a client that makes its own reads every certificate of the machine first."""


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return the first true value of `condition`; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds} s")


@dataclass
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    admin_port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, **{"timeout": 60, "verify": NO_TLS, **options})

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, **{"timeout": 60, "verify": NO_TLS, **options})

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, **{"timeout": 60, "verify": NO_TLS, **options})

    def post_bytes(self, path: str, body: bytes, content_type: str = "application/json") -> httpx.Response:
        return httpx.post(
            self.url + path, content=body, headers={"content-type": content_type}, timeout=60, verify=NO_TLS
        )

    def status(self, path: str) -> int:
        """Return a probe's status, 0 if nobody answers."""
        try:
            return self.get(path, timeout=5).status_code
        except httpx.TransportError:
            return 0

    def metrics(self, *names: str) -> dict[str, float]:
        """Return samples by their exposition text (`name{labels}`)."""
        text = self.get("/metrics", params=[("name[]", name) for name in names]).text
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def idle(self) -> bool:
        """Return whether nothing runs, nothing waits and no block is held."""
        found = self.metrics("octavo_requests_running", "octavo_queue_depth", "octavo_kv_blocks")
        return (
            found["octavo_requests_running"] == 0
            and found["octavo_queue_depth"] == 0
            and found['octavo_kv_blocks{state="active"}'] == 0
        )

    def wait_idle(self, seconds: float = 5.0) -> None:
        wait_until(self.idle, seconds, "idle")

    def engine(self) -> psutil.Process:
        return self._child("octavo_engine.worker")

    def tokenisers(self) -> list[psutil.Process]:
        return [child for child in self.children() if "octavo_engine.server.tokenize_worker" in child.cmdline()]

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def _child(self, module: str) -> psutil.Process:
        return next(child for child in self.children() if module in child.cmdline())

    def text_log(self) -> str:
        return self.log.read_text()


@contextmanager
def serving(
    folder: Path,
    uri: str,
    *flags: str,
    ready: bool = True,
    environment: Mapping[str, str] | None = None,
    name: str = "scripted",
    group: bool = False,
) -> Iterator[Server]:
    """Run `octavo serve URI FLAGS`, in a process group of its own if so; end it, and all it started, on the way out."""
    port, admin_port = free_port(), free_port()
    log = folder / f"serve-{port}.log"
    command = [
        *(sys.executable, "-m", "octavo_engine.cli", "serve", uri, "--host", "127.0.0.1", "--port", str(port)),
        *("--admin-port", str(admin_port), "--served-model-name", name, *flags),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=_environment(environment), start_new_session=group
        )
    server = Server(process, port, admin_port, log)
    try:
        if ready:
            wait_until(lambda: _ready(server), START_SECONDS, f"ready ({log})")
        yield server
    finally:
        _end(process)


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", **(extra or {})}


def _ready(server: Server) -> bool:
    code = server.process.poll()
    assert code is None, f"the server ended with {code}:\n{server.text_log()}"
    return server.status("/ready") == 200


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.terminate()  # a second one ends at once
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    for child in alive:
        child.kill()
    assert not alive, "the server left processes behind"


def events(response: httpx.Response) -> Iterator[Any]:
    """Yield the JSON of each server-sent event, and the string "[DONE]"."""
    for line in response.iter_lines():
        if line:
            assert line.startswith("data: "), line
            data = line[len("data: ") :]
            yield data if data == "[DONE]" else json.loads(data)


def read_stream(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    """Return all events of a streamed answer."""
    with server.client() as client, client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        return list(events(response))


def text_of(stream: list[Any], choice: int = 0) -> str:
    """Return a streamed choice's text, of either kind."""
    pieces = []
    for event in stream:
        if isinstance(event, str):
            continue
        for item in event["choices"]:
            if item["index"] == choice:
                pieces.append(item.get("text") or item.get("delta", {}).get("content") or "")
    return "".join(pieces)


def finish_reasons(stream: list[Any], choice: int = 0) -> list[str]:
    """Return the finish reasons of a streamed choice; there must be exactly one."""
    return [
        item["finish_reason"]
        for event in stream
        if not isinstance(event, str)
        for item in event["choices"]
        if item["index"] == choice and item["finish_reason"] is not None
    ]
