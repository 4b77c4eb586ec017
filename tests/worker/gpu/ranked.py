"""An engine of several ranks over gloo, as the API process sees it: its messages, and its processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.launch import configure_engine
from octavo_engine.ipc.messages import (
    AdapterFailed,
    AdapterLoaded,
    Failed,
    LoadAdapter,
    Loaded,
    SamplingParams,
    Shutdown,
    Step,
    StopRule,
    Submit,
    ToServer,
)
from octavo_engine.ipc.transport import ServerEndpoint

PATIENCE = 240
Message = TypeVar("Message")


class RankedEngine:
    """The API process's side of one engine process."""

    def __init__(self, model: Path, size: int, **config: object) -> None:
        self.endpoint = ServerEndpoint()
        command = [sys.executable, "-m", "tests.worker.gpu.engine_process"]
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        sizes = {"kv_cache_memory": 4 << 20, "max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 48}
        # A step in the interpreter takes as long as a busy machine makes it take.
        sizes["step_timeout_seconds"] = 600.0
        asked = {"dtype": "float32", "quantization": "none", "log_level": "warning"} | sizes | config
        configure_engine(
            self.process, EngineConfig(str(model), str(self.endpoint.folder), tensor_parallel_size=size, **asked)
        )
        self._runner = asyncio.Runner()

    def receive(self) -> ToServer:
        return self._runner.run(asyncio.wait_for(self.endpoint.receive(), PATIENCE))

    def until(self, kind: type[Message]) -> Message:
        while not isinstance(message := self.receive(), kind):
            assert not isinstance(message, Failed), message.detail
        return message

    def loaded(self) -> Loaded:
        return self.until(Loaded)

    def ranks(self) -> list[psutil.Process]:
        """The processes of ranks 1, 2 …"""
        return sorted(psutil.Process(self.process.pid).children(), key=lambda process: process.pid)

    def load_adapter(self, slot: int, folder: Path) -> None:
        """Load an adapter on every rank. Raises AssertionError with what is said if it is refused."""
        self.endpoint.send(LoadAdapter(slot, str(folder)))
        while not isinstance(message := self.receive(), AdapterLoaded):
            assert not isinstance(message, Failed | AdapterFailed), message

    def begin(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, *, adapter: int = -1, **sampling: object
    ) -> None:
        """Send requests that run together."""
        for number, prompt in enumerate(prompts):
            data = np.array(prompt, dtype="<i4").tobytes()
            params = SamplingParams(**({"seed": number, "temperature": 0.0} | sampling))
            self.endpoint.send(Submit(number, data, params, StopRule(max_tokens=max_tokens), adapter=adapter))

    def answers(self, prompts: Sequence[Sequence[int]], max_tokens: int, **sampling: Any) -> list[list[int]]:
        """Return the tokens of requests that run together, as `begin` sends them."""
        self.begin(prompts, max_tokens, **sampling)
        tokens: dict[int, list[int]] = {number: [] for number in range(len(prompts))}
        running = set(tokens)
        while running:
            for out in self.until(Step).outputs:
                tokens[out.request] += out.tokens
                assert out.finish != "error", out.detail
                running -= {out.request} if out.finish else set()
        return [tokens[number] for number in range(len(prompts))]

    def leave(self) -> int:
        self.endpoint.send(Shutdown())
        return self.process.wait(30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._runner.close()
        self.endpoint.close()


@contextmanager
def ranked_engine(model: Path, size: int, **config: object) -> Iterator[RankedEngine]:
    """Start an engine of so many ranks."""
    engine = RankedEngine(model, size, **config)
    try:
        yield engine
    finally:
        engine.close()
