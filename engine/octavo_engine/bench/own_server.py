"""`octavo serve` as a process of its own on a free loopback port, and what CPU its processes take."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final

import psutil

from octavo_engine import contract
from octavo_engine.ipc.config import EngineConfig

_READY: Final = re.compile(r"Serving .* at (http://\S+)$")
_LAST_LINES: Final = 8
_END_SECONDS: Final = 15.0
_CALL_SECONDS: Final = 10.0
_LAUNCH: Final = """
import sys
from octavo_engine.worker.parent import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
from octavo_engine.cli import main
main()
"""
"""`octavo serve`, which the kernel ends when the bench that started it ends in any way."""
_SECRETS: Final = (contract.ENV_API_KEYS_FILE, contract.ENV_GATEWAY_CREDENTIAL_FILE, "OPENAI_API_KEY")
"""Variables of the shell that are not for this server: it would ask its own bench for a key."""


class ServerError(RuntimeError):
    """The server did not come up; the message holds its last words."""


class OwnServer:
    """A server that answers at `url` under the model name `name`."""

    name = "bench"

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        """Know the running process."""
        self.url = url
        self._process = psutil.Process(process.pid)

    def engine_seconds(self) -> tuple[float, float]:
        """Return for how long the engine loop has had something to do, and for how much of it kernels computed."""
        names = (contract.BUSY_SECONDS.name, contract.KERNEL_SECONDS.name)
        query = "&".join(f"name[]={name}" for name in names)
        with urllib.request.urlopen(f"{self.url}{contract.PATH_METRICS}?{query}", timeout=_CALL_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        busy, kernels = (float(found[name]) for name in names)
        return busy, kernels

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds taken so far, by role: api, engine, tokenisers."""
        taken = {"api": _cpu(self._process), "engine": 0.0, "tokenisers": 0.0}
        for child in self._process.children(recursive=True):
            taken["engine" if "octavo_engine.worker" in child.cmdline() else "tokenisers"] += _cpu(child)
        return taken


@contextmanager
def own_server(model: str, flags: Sequence[str] = ()) -> Iterator[OwnServer]:
    """Start `octavo serve MODEL FLAGS` and end it, and all it started, on the way out. Raises ServerError.

    It ends with the thread that calls this, too: call it from the main thread.
    """
    command = [
        *(sys.executable, "-P", "-c", _LAUNCH, str(os.getpid())),
        *("serve", model, "--host", "127.0.0.1", "--port", "0"),
        *("--admin-port", "0", "--served-model-name", OwnServer.name, "--drain-propagation", "0", *flags),
    ]
    environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", env=environment
    )
    assert process.stderr is not None
    reader: threading.Thread | None = None
    try:
        server = OwnServer(process, _wait_ready(process.stderr))
        # Its log is read on, or a full pipe would stop it.
        reader = threading.Thread(target=collections.deque, args=(process.stderr, 0), daemon=True)
        reader.start()
        yield server
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if reader is not None:
            reader.join(_END_SECONDS)
        process.stderr.close()


def serve_flags(config: EngineConfig) -> list[str]:
    """Return the flags with which `octavo serve` takes this configuration."""
    flags = [
        *("--dtype", config.dtype, "--quantization", config.quantization, "--kv-cache-dtype", config.kv_cache_dtype),
        *("--kv-cache-memory", str(config.kv_cache_memory), "--max-num-seqs", str(config.max_num_seqs)),
        *("--max-num-batched-tokens", str(config.max_num_batched_tokens), "--scheduler", config.scheduler),
        *("--speculation", config.speculation, "--kv-allocation", config.kv_allocation),
        *("--max-model-len", str(config.max_model_len or "auto")),
        *("--max-queue-requests", str(config.max_queue_requests)),
        *("--max-queue-tokens", str(config.max_queue_tokens)),
    ]
    return flags if config.prefix_sharing else [*flags, "--no-prefix-sharing"]


def _wait_ready(log: IO[str]) -> str:
    last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
    for line in log:
        found = _READY.search(line.rstrip())
        if found is not None:
            return found[1]
        last.append(line.rstrip())
    raise ServerError("octavo serve ended before it was ready:\n" + "\n".join(last))


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
