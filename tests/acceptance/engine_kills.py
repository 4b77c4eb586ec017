"""The engine process killed and stopped at random moments, streams open: who notices when, and what the streams see."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from octavo_engine import contract
from tests.server.launch import Server, serving

from .idle import State
from .storm import until_idle
from .wire import Answer, Broken, ask

MODEL = "scripted://?step=5ms&blocks=512&eos=0.01"
FLAGS = ("--engine-restarts", "100", "--drain-propagation", "0")
STREAMS = 8
NOTICED_SECONDS = 30.0
"""What is promised of a hang; the limits below only end a test that waits in vain."""
NOTICE_LIMIT, BACK_LIMIT = 90.0, 60.0
LOOK_SECONDS = 0.02
AGAIN_SECONDS = 0.1
FRESH = {"prompt": "Back again", "max_tokens": 16, "seed": 5, "temperature": 0.8, "logprobs": 1}


class Round(NamedTuple):
    """One signal: seconds until `/health` failed, and until a fresh request was answered as it was before."""

    signal: signal.Signals
    noticed: float
    back: float


@dataclass
class Trial:
    """All rounds, and how the streams ended: how many complete, with an error, or (`faults`) with neither."""

    rounds: list[Round] = field(default_factory=list)
    streams: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    same_server: bool = False
    state: State | None = None

    def slowest(self, number: signal.Signals) -> float:
        """Return the longest time in which a signal of this kind was noticed, 0 if there was none."""
        return max((each.noticed for each in self.rounds if each.signal is number), default=0.0)


def try_out(folder: Path, times: int, seed: int) -> Trial:
    """Send so many signals, half of them of each kind, in random order."""
    trial = Trial()
    with serving(folder, MODEL, *FLAGS) as server:
        asyncio.run(_rounds(server, times, random.Random(seed), trial))
        trial.same_server = server.process.poll() is None
        _, trial.state = until_idle(server)
    return trial


async def _rounds(server: Server, times: int, draw: random.Random, trial: Trial) -> None:
    expected = await _fresh(server.port)
    signals = [signal.SIGKILL if number % 2 else signal.SIGSTOP for number in range(times)]
    draw.shuffle(signals)
    over = asyncio.Event()
    streams = [
        asyncio.create_task(_stream(server.port, random.Random(draw.random()), over, trial)) for _ in range(STREAMS)
    ]
    try:
        for number in signals:
            await asyncio.sleep(draw.uniform(0.1, 2.0))
            trial.rounds.append(await _round(server, number, expected))
    finally:
        over.set()
        await asyncio.gather(*streams)


async def _round(server: Server, number: signal.Signals, expected: Any) -> Round:
    engine = server.engine().pid
    os.kill(engine, number)
    began = time.monotonic()
    noticed = await _until(began, NOTICE_LIMIT, lambda: _status(server.port, contract.PATH_HEALTH), 503)
    back = await _until(began + noticed, BACK_LIMIT, lambda: _status(server.port, contract.PATH_READY), 200)
    got = await _fresh(server.port)
    if got != expected:
        raise AssertionError(f"a fresh request was answered {expected} before, and {got} after a {number.name}")
    if server.engine().pid == engine:
        raise AssertionError("the engine is the same process as before")
    return Round(number, noticed, back)


async def _until(began: float, limit: float, look: Any, wanted: int) -> float:
    """Look until a status is seen; return the seconds since `began`, or the limit once it is over."""
    while (passed := time.monotonic() - began) < limit:
        if await look() == wanted:
            return time.monotonic() - began
        await asyncio.sleep(LOOK_SECONDS)
    return passed


async def _status(port: int, path: str) -> int:
    return (await ask(port, path)).status


async def _fresh(port: int) -> Any:
    answer = await ask(port, contract.PATH_COMPLETIONS, FRESH)
    return [answer.status, answer.body["choices"] if answer.status == 200 else answer.body]


async def _stream(port: int, draw: random.Random, over: asyncio.Event, trial: Trial) -> None:
    """Take one long stream after the other. Those that a signal ends say so; a refusal is tried again."""
    while not over.is_set():
        n = draw.choice([1, 1, 3])
        body = {"prompt": "p" * draw.randint(1, 40), "max_tokens": draw.choice([20, 200, 2000]), "n": n, "stream": True}
        try:
            answer = await ask(port, contract.PATH_COMPLETIONS, body)
        except (Broken, OSError) as error:
            trial.faults.append(f"a stream broke off without a word: {error}")
            continue
        kind = _kind(answer)
        trial.streams[kind] += 1
        if kind == "refused":
            await asyncio.sleep(AGAIN_SECONDS)
        elif fault := answer.fault(n):
            trial.faults.append(fault)


def _kind(answer: Answer) -> str:
    if answer.status == 200:
        return "ended by an error" if answer.error else "complete"
    return "refused" if answer.status in (429, 503) else "failed before its first token"
