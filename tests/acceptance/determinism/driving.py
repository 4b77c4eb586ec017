"""The engine's loop in this process, and a client that submits requests one after another, or all at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from octavo_engine.bench.harness import run_loop
from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.messages import (
    AdapterLoaded,
    LoadAdapter,
    Shutdown,
    Snapshot,
    Step,
    Submit,
    ToEngine,
    ToServer,
)
from octavo_engine.worker.start import Engine

from .asking import Asked
from .told import Key, Listener, Told


class Heard(NamedTuple):
    """What was told, and the engine's last state."""

    told: dict[Key, Told]
    snapshot: Snapshot


def drive(
    engine: Engine,
    config: EngineConfig,
    asked: Sequence[Asked],
    at_once: int,
    passes: int,
    adapters: Sequence[str] = (),
) -> Heard:
    """Ask an engine; return what the last pass was told.

    at_once: requests open at the same time, 0 for all. passes: how often all of them are asked, one pass after the
    other. adapters: folders, loaded into the slots from 0 on before anything is asked. Raises NotTold, BenchError.
    """
    client = _Client([each.submit for each in asked], at_once, passes, adapters)
    run_loop(engine, config, client)
    assert client.snapshot is not None
    return Heard(client.listener.told, client.snapshot)


class _Client:
    """`Endpoint` that is its own API process."""

    def __init__(self, submits: Sequence[Submit], at_once: int, passes: int, adapters: Sequence[str]) -> None:
        self._submits = submits
        self._at_once = at_once
        self._passes = passes
        self._passed = 0
        self._to_load = [LoadAdapter(slot, folder) for slot, folder in enumerate(adapters)]
        self._loading = len(self._to_load)
        self._to_send: deque[Submit] = deque()
        self._choices: dict[int, int] = {}
        """Of the requests that are open, how many have not ended."""
        self._woken = threading.Event()
        self.listener = Listener()
        self.snapshot: Snapshot | None = None

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        """Return what the loop has not seen yet. It asks with patience when there is nothing else left to do."""
        if self._loading:
            return self._load(timeout_seconds)
        if timeout_seconds > 0 and not self._choices and not self._to_send:
            if self._passed == self._passes:
                return [Shutdown()]
            self._begin()
        messages: list[ToEngine] = []
        while self._to_send and (not self._at_once or len(self._choices) < self._at_once):
            submit = self._to_send.popleft()
            self._choices[submit.request] = submit.n
            messages.append(submit)
        if timeout_seconds > 0 and not messages:
            self._woken.wait(timeout_seconds)
        self._woken.clear()
        return messages

    def _load(self, timeout_seconds: float) -> list[ToEngine]:
        messages: list[ToEngine] = [*self._to_load]
        self._to_load.clear()
        if not messages:
            self._woken.wait(timeout_seconds)
        self._woken.clear()
        return messages

    def _begin(self) -> None:
        first = self._passed * len(self._submits)
        self._passed += 1
        self.listener = Listener(first)
        self._to_send.extend(
            msgspec.structs.replace(submit, request=first + submit.request) for submit in self._submits
        )

    def wake(self) -> None:
        """End a wait."""
        self._woken.set()

    def send(self, message: ToServer) -> None:
        """Take a message in. Raises NotTold."""
        self.listener.take(message)
        if isinstance(message, AdapterLoaded):
            self._loading -= 1
        if not isinstance(message, Step):
            return
        self.snapshot = message.snapshot
        for output in message.outputs:
            if output.finish:
                self._choices[output.request] -= 1
                if not self._choices[output.request]:
                    del self._choices[output.request]
