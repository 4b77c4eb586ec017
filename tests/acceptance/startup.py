"""From exec of `octavo serve` to the first token of a request sent as soon as the port opens, and what it weighs."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from octavo_engine.bench.http_stream import connect, parse_url, request_bytes
from octavo_engine.bench.load import Target
from octavo_engine.bench.workload import Item

START_SECONDS = 60.0


class Started(NamedTuple):
    """Seconds to the port and to the first token; bytes of both processes; modules found that must not be there."""

    port_seconds: float
    first_token_seconds: float
    pss_bytes: int
    torch_in: list[str]


def measure(model: str, cache: Path | None = None, kv_cache_memory: str = "256Mi") -> Started:
    """Start a server of `model`, with its packed weights in `cache` (a fresh folder: none are packed yet)."""
    port = _free_port()
    environment = {**os.environ, **({"OCTAVO_CACHE": str(cache)} if cache else {})}
    command = [
        *(sys.executable, "-m", "octavo_engine.cli", "serve", model, "--host", "127.0.0.1", "--port", str(port)),
        *("--admin-port", "0", "--served-model-name", "m", "--kv-cache-memory", kv_cache_memory),
    ]
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            opened = _wait_open(process, port) - began
            first = asyncio.run(_first_token(port)) - began
            return Started(opened, first, _pss(process.pid), _torch(process.pid))
        finally:
            process.terminate()
            process.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_open(process: subprocess.Popen[bytes], port: int) -> float:
    deadline = time.perf_counter() + START_SECONDS
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return time.perf_counter()
        time.sleep(0.005)
    raise RuntimeError(f"port {port} did not open within {START_SECONDS} s")


async def _first_token(port: int) -> float:
    """Send a request at once, and again as often as the server says that it is not ready yet."""
    target = Target(f"http://127.0.0.1:{port}", "m")
    address = parse_url(target.url)
    request = request_bytes(address, "POST", "/v1/completions", target.body(Item(tuple(range(100, 116)), 2)))
    deadline = time.perf_counter() + START_SECONDS
    while time.perf_counter() < deadline:
        connection = await connect(address)
        answer = await connection.request(request)
        connection.close()
        if answer.status == 200:
            return answer.times[0]
        if answer.status != 503:
            raise RuntimeError(f"the server answered {answer.status}: {answer.body[:200]!r}")
        await asyncio.sleep(0.01)
    raise RuntimeError(f"no token within {START_SECONDS} s")


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _pss(pid: int) -> int:
    """Return the proportional set size of the API process and the engine process (not the tokenisers')."""
    both = [process for process in _tree(pid) if "tokenize_worker" not in " ".join(process.cmdline())]
    return sum(process.memory_full_info().pss for process in both)


def _torch(pid: int) -> list[str]:
    """Return the processes that have torch's library mapped: imported it is whenever it is."""
    return [
        " ".join(process.cmdline()[:4])
        for process in _tree(pid)
        if re.search(r"/torch/|libtorch", Path(f"/proc/{process.pid}/maps").read_text())
    ]


@contextmanager
def fresh_cache(model_root: Path) -> Iterator[Path]:
    """Yield a cache folder that holds the models and nothing that was made from them."""
    with tempfile.TemporaryDirectory(prefix="octavo-cache-") as folder:
        (Path(folder) / "models").symlink_to(model_root)
        yield Path(folder)
