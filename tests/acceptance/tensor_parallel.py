"""What several ranks answer beside what one answers, over gloo and in float32; and how they end when one is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import psutil

from octavo_engine.ipc.messages import Failed
from tests.model.gemma import fetch_gemma
from tests.worker.backends import VOCAB, write_random_llama
from tests.worker.gpu.ranked import ranked_engine

PROMPT_LENGTHS: Final = (3, 16, 17, 40)


class Shared(NamedTuple):
    """A model that ranks share. write: makes it in an empty folder, and returns where it is."""

    name: str
    write: Callable[[Path], Path]
    vocab_size: int
    max_tokens: int


def _llama(heads: tuple[int, int]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        write_random_llama(folder, heads=heads)
        return folder

    return write


LLAMAS: Final = (
    Shared("random Llama, 8/4 heads", _llama((8, 4)), VOCAB, 16),
    Shared("random Llama, 8/2 heads", _llama((8, 2)), VOCAB, 16),
)
GEMMA: Final = Shared("Gemma 3 270M", lambda folder: fetch_gemma(), 50_000, 4)


def greedy(shared: Shared, model: Path, ranks: int) -> list[list[int]]:
    """Return the greedy tokens of some prompts that run together on so many ranks."""
    random = np.random.default_rng(11)
    prompts = [random.integers(0, shared.vocab_size, length).tolist() for length in PROMPT_LENGTHS]
    # Several prompts' chunks and rows in a step, and one prompt in several steps.
    with ranked_engine(model, ranks, kv_cache_memory=64 << 20, max_num_batched_tokens=32) as engine:
        engine.loaded()
        return engine.answers(prompts, shared.max_tokens)


class Ended(NamedTuple):
    """How an engine ended: its reason, and the seconds until the last of its processes had gone."""

    reason: str
    seconds: float


def kill(model: Path, ranks: int, victim: int, prompts: Sequence[Sequence[int]] = ((1, 2, 3),)) -> Ended:
    """Kill a rank, in the middle of answers."""
    with ranked_engine(model, ranks) as engine:
        engine.loaded()
        engine.begin(prompts, 60)
        engine.receive()
        processes = [psutil.Process(engine.process.pid), *engine.ranks()]
        began = time.monotonic()
        os.kill(processes[victim].pid, 9)
        while not isinstance(message := engine.receive(), Failed):
            pass
        engine.process.wait(30)
        _, alive = psutil.wait_procs(processes, timeout=30)
        return Ended(message.detail if not alive else f"{len(alive)} ranks live on", time.monotonic() - began)
