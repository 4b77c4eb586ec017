"""A storm of 64 clients of every kind, and what is left of it: nothing.

Memory is compared with what it was, idle, after a first storm of the same kind: what a process takes once, for code,
pools and caches, is no growth.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from octavo_engine import contract
from tests.server.launch import Server, serving

from .idle import State, resident_bytes, state
from .rough_clients import CONTEXT, MODEL, Wrong, act
from .wire import Broken, ask

CLIENTS = 64
IDLE_SECONDS = 2.0
PROBE_SECONDS = 0.1
WAIT_SECONDS = 30.0
FLAGS = ("--max-num-seqs", "32", "--max-queue-requests", "96", "--max-model-len", str(CONTEXT))
FRESH = {"prompt": "After the storm", "max_tokens": 20, "seed": 4, "temperature": 0.8, "logprobs": 2}
MOST_FAULTS = 20


@dataclass
class Tally:
    """What the clients saw. `faults`: what must never be seen."""

    acts: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest_probe: float = 0.0

    def fault(self, text: str) -> None:
        """Note a fault, if there are not too many to read already."""
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(text)


class Aftermath(NamedTuple):
    """What a storm left. `idle_seconds`: after the last client had gone, until nothing ran, waited or was held."""

    tally: Tally
    idle_seconds: float
    state: State
    before: dict[str, int]
    after: dict[str, int]
    fresh: str
    """How the answer of a fresh request differs from that before the storm."""
    same_engine: bool

    @property
    def growth(self) -> float:
        """Of all processes' resident memory, relative."""
        return sum(self.after.values()) / sum(self.before.values()) - 1


async def blow(server: Server, seconds: float, seed: int, clients: int = CLIENTS) -> Tally:
    """Let the clients act for so long; then all leave, whatever they are at."""
    tally = Tally()
    draws = [random.Random(f"{seed} {number}") for number in range(clients)]
    tasks = [asyncio.create_task(_client(server.port, draw, tally)) for draw in draws]
    tasks.append(asyncio.create_task(_probe(server.port, tally)))
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):
            tally.fault(f"a client of this test broke: {ended!r}")
    return tally


async def _client(port: int, draw: random.Random, tally: Tally) -> None:
    while True:
        try:
            tally.acts[await act(port, draw)] += 1
        except Wrong as error:
            tally.fault(str(error))


async def _probe(port: int, tally: Tally) -> None:
    """Ask for health as a kubelet does: it is never bad, since the engine is well."""
    while True:
        began = time.monotonic()
        try:
            answer = await ask(port, contract.PATH_HEALTH)
        except (Broken, OSError) as error:
            tally.fault(f"/health: {error}")
        else:
            if answer.status != 200:
                tally.fault(f"/health answered {answer.status}: {answer.body}")
        tally.slowest_probe = max(tally.slowest_probe, time.monotonic() - began)
        await asyncio.sleep(PROBE_SECONDS)


def until_idle(server: Server) -> tuple[float, State]:
    """Wait until a server is idle, or WAIT_SECONDS; return how long that took, and its state then."""
    began = time.monotonic()
    while True:
        seen = state(server)
        if seen.idle or time.monotonic() - began > WAIT_SECONDS:
            return time.monotonic() - began, seen
        time.sleep(0.02)


def fresh_answer(server: Server) -> Any:
    """Return what a fresh request is told, but for what names the answer itself."""
    answer = server.post(contract.PATH_COMPLETIONS, FRESH)
    return answer.json()["choices"] if answer.status_code == 200 else [answer.status_code, answer.text]


def weather(folder: Path, seconds: float, warm_up: float, seed: int) -> Aftermath:
    """Start a server, let a first storm blow, then the one that counts; return what it left."""
    with serving(folder, MODEL, *FLAGS, "--drain-propagation", "0") as server:
        expected, engine = fresh_answer(server), server.engine().pid
        first = asyncio.run(blow(server, warm_up, seed + 1))
        until_idle(server)
        before = resident_bytes(server)
        tally = asyncio.run(blow(server, seconds, seed))
        idle_seconds, seen = until_idle(server)
        after = resident_bytes(server)
        tally.faults += first.faults
        got = fresh_answer(server)
        fresh = "" if got == expected else f"{expected} became {got}"
        return Aftermath(tally, idle_seconds, seen, before, after, fresh, server.engine().pid == engine)
