"""What clients with huge prompts do to everybody else: probes, a running stream, the API process's memory.

`python -m tests.server.overload` prints the figures for the bundled model (`--model scripted://…` for another). Eight
clients keep sending prompts just under the bound that is refused unread; each is tokenised for nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from octavo_engine import contract
from octavo_engine.model.pull import pull
from octavo_engine.server.tokenizer import load_tokenizer
from tests.server.launch import Server, events, serving

CLIENTS = 8
PROBES = 200
PROBE_EVERY_SECONDS = 0.05
WORDS = "the quick brown fox jumps over the lazy dog and runs away from it, 42 times a day; "


@dataclass
class Figures:
    """Seconds, unless said. `machine_delay` is how late the machine woke a process that only slept meanwhile."""

    probes: int
    probe_p50: float
    probe_p90: float
    probe_max: float
    machine_delay_max: float
    quiet_itl_p50: float
    quiet_itl_p99: float
    loaded_itl_p50: float
    loaded_itl_p99: float
    memory_growth_megabytes: float
    prompt_bytes: int
    answers: dict[str, int]


class Stream(threading.Thread):
    """Reads one long stream and keeps the times between its chunks."""

    def __init__(self, server: Server, tokens: int) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._body = {"prompt": "p", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        self.times: list[float] = []

    def run(self) -> None:
        with (
            self._server.client() as client,
            client.stream("POST", contract.PATH_COMPLETIONS, json=self._body) as answer,
        ):
            for _ in events(answer):
                self.times.append(time.perf_counter())

    def gaps(self, start: float, end: float) -> list[float]:
        """Return the times between chunks within a span."""
        times = [moment for moment in self.times if start <= moment <= end]
        return sorted(later - earlier for earlier, later in pairwise(times))


class MachineDelay(threading.Thread):
    """A separate process that sleeps and says how late it was woken: what the machine does to everybody."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SLEEPER], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        self.start()

    def stop(self) -> float:
        """Return the worst delay."""
        out, _ = self._process.communicate()
        return float(out)


_SLEEPER = """
import sys, threading, time
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
worst = 0.0
while not over.is_set():
    began = time.perf_counter()
    time.sleep(0.01)
    worst = max(worst, time.perf_counter() - began - 0.01)
print(worst)
"""


def percentile(values: list[float], share: float) -> float:
    """Return a percentile of sorted values."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def measure(server: Server, prompt_bytes: int, probes: int = PROBES, quiet_seconds: float = 8.0) -> Figures:
    """Measure a quiet stream, then the same stream, probes and memory beside CLIENTS senders."""
    api = psutil.Process(server.process.pid)
    stream = Stream(server, 100_000)
    stream.start()
    while len(stream.times) < 3:
        time.sleep(0.05)
    quiet_start = time.perf_counter()
    time.sleep(quiet_seconds)
    quiet = stream.gaps(quiet_start, time.perf_counter())
    before = peak = api.memory_info().rss
    clients = subprocess.Popen(
        [sys.executable, "-m", "tests.server.overload", "--hammer", str(server.port), str(prompt_bytes)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    delay = MachineDelay()
    took = []
    try:
        loaded_start = time.perf_counter()
        with server.client() as client:
            for _ in range(probes):
                began = time.perf_counter()
                assert client.get(contract.PATH_HEALTH).status_code == 200
                took.append(time.perf_counter() - began)
                peak = max(peak, api.memory_info().rss)
                time.sleep(PROBE_EVERY_SECONDS)
        loaded = stream.gaps(loaded_start, time.perf_counter())
        worst = delay.stop()
    finally:
        answers, _ = clients.communicate()
    took.sort()
    return Figures(
        len(took), percentile(took, 0.5), percentile(took, 0.9), took[-1], worst,
        percentile(quiet, 0.5), percentile(quiet, 0.99), percentile(loaded, 0.5), percentile(loaded, 0.99),
        (peak - before) / 1e6, prompt_bytes, json.loads(answers),
    )  # fmt: skip


def bound_bytes(server: Server, source: str) -> int:
    """Return the longest text that is not refused unread: max_model_len x the longest token's bytes."""
    limit = int(server.get(contract.PATH_MODELS).json()["data"][0]["max_model_len"])
    return (limit - 1) * load_tokenizer(source).max_token_bytes


def hammer(port: int, prompt_bytes: int) -> None:
    """Be CLIENTS clients until standard input ends; print what they were answered. Far away, so at low priority."""
    os.nice(10)
    text = (WORDS * (prompt_bytes // len(WORDS) + 1))[:prompt_bytes]
    body = json.dumps({"prompt": text, "max_tokens": 1}).encode()
    head = f"POST {contract.PATH_COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request = f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    over = threading.Event()
    answers: Counter[str] = Counter()

    def client() -> None:
        while not over.is_set():
            with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
                connection.sendall(request)
                data = b""
                while piece := connection.recv(65536):
                    data += piece
            answers[data[9:12].decode()] += 1

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    print(json.dumps(answers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bundled://smollm2-135m-instruct")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--hammer", nargs=2, type=int, metavar=("PORT", "BYTES"))
    options = parser.parse_args()
    if options.hammer:
        hammer(*options.hammer)
        return
    source = options.model if options.model.startswith("scripted://") else str(pull(options.model))
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), options.model, "--drain-timeout", "1") as server,
    ):
        figures = asdict(measure(server, bound_bytes(server, source)))
    for name, value in figures.items():
        print(f"{name:26} {value:.4f}" if isinstance(value, float) else f"{name:26} {value}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
