"""The executor of a runner that only queues: plans are on the device before their results are asked for."""

from __future__ import annotations

import time
from typing import Any

from octavo_engine.core.step import StepPlan
from octavo_engine.sampling.settings import SamplingSettings
from octavo_engine.worker.executable import OpenedAdapter
from octavo_engine.worker.executor import Executed, Pending
from octavo_engine.worker.gpu.launched import Launched
from octavo_engine.worker.gpu.runner import GpuRunner
from octavo_engine.worker.grammar import Grammar


class QueuedExecutor:
    """One GPU runner on the loop's own thread: it assembles plan N + 1 there while the device computes plan N."""

    def __init__(self, runner: GpuRunner) -> None:
        """Compute with `runner`."""
        self._runner = runner
        self._ended = 0.0
        """When the last result was there."""

    def register(self, sequence: int, settings: SamplingSettings, grammar: Grammar | None = None) -> None:
        """Give a sequence's sampling parameters."""
        self._runner.register(sequence, settings.parameters, grammar)

    def forget(self, sequence: int) -> None:
        """Drop a sequence's parameters: no plan admits it any more, and those in flight have read them."""
        self._runner.forget(sequence)

    def set_adapter(self, slot: int, adapter: OpenedAdapter | None) -> None:
        """Make `slot` mean an adapter, or nothing, for the plans to come: the device finishes the others before."""
        self._runner.set_adapter(slot, adapter)

    def submit(self, plan: StepPlan) -> Pending[Executed]:
        """Queue the plan on the device."""
        return _Queued(self, self._runner.launch(plan), time.perf_counter())

    def probe(self) -> Pending[None]:
        """Compute one token of nobody's when asked for."""
        return _Probed(self._runner)

    def check(self) -> None:
        """This process is all there is."""

    def close(self) -> None:
        """Nothing is left to stop."""

    def finished(self, queued: float) -> float:
        """Return how long the device had for a step: since it was queued, or since the one before it ended."""
        now = time.perf_counter()
        seconds = now - max(queued, self._ended)
        self._ended = now
        return seconds


class _Queued:
    def __init__(self, executor: QueuedExecutor, launched: Launched, queued: float) -> None:
        self._executor, self._launched, self._when = executor, launched, queued

    def result(self) -> Executed:
        result = self._launched.result()
        return Executed(result, self._executor.finished(self._when), 0.0)


class _Probed:
    def __init__(self, runner: GpuRunner) -> None:
        self._runner = runner

    def result(self) -> Any:
        self._runner.probe()
