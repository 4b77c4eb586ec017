"""Executors run plans in order, away from the loop: in process on a thread, later one process per rank.

The loop schedules plan N + 1 while the executor computes plan N; at most two plans are given at a time.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

from octavo_engine.core.step import StepPlan, StepResult
from octavo_engine.sampling.settings import SamplingSettings
from octavo_engine.worker.runner import Runner


class Executed(NamedTuple):
    """What a plan gave, and how many seconds computing it took."""

    result: StepResult
    seconds: float


class Executor(Protocol):
    """Plans in, results out, in order. A plan's future raises StepError if computing it failed."""

    def register(self, sequence: int, settings: SamplingSettings) -> None:
        """Give a sequence's sampling settings; before the plan that admits it."""
        ...

    def forget(self, sequence: int) -> None:
        """Drop the settings of a sequence that has ended."""
        ...

    def submit(self, plan: StepPlan) -> Future[Executed]:
        """Queue a plan behind those given before."""
        ...

    def probe(self) -> Future[None]:
        """Compute one token of nobody's, behind the plans given before; the future raises if that fails."""
        ...

    def close(self) -> None:
        """Finish what was given and stop."""
        ...


class InProcessExecutor:
    """One runner on its own thread. Kernels release the interpreter lock, so the loop goes on meanwhile."""

    def __init__(self, runner: Runner) -> None:
        """Start the thread with the first plan."""
        self._runner = runner
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="runner")

    def register(self, sequence: int, settings: SamplingSettings) -> None:
        """Give a sequence's sampling settings, in order with the plans."""
        self._thread.submit(self._runner.register, sequence, settings)

    def forget(self, sequence: int) -> None:
        """Drop a sequence's settings, in order with the plans: one in flight may still admit it."""
        self._thread.submit(self._runner.forget, sequence)

    def submit(self, plan: StepPlan) -> Future[Executed]:
        """Queue a plan."""
        return self._thread.submit(self._execute, plan)

    def probe(self) -> Future[None]:
        """Compute one token of nobody's."""
        return self._thread.submit(self._runner.probe)

    def close(self) -> None:
        """Wait for the thread."""
        self._thread.shutdown()

    def _execute(self, plan: StepPlan) -> Executed:
        started = time.perf_counter()
        result = self._runner.execute(plan)
        return Executed(result, time.perf_counter() - started)
