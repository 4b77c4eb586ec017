"""Executors run plans in order: on the loop's own thread, on a thread beside it, or with
those of other ranks (`ranks.executor`).

With one plan in flight the loop has nothing to do while a step is computed, and handing a plan to another thread costs
two waits for the interpreter's lock: `InlineExecutor`. With two, the loop schedules plan N + 1 while N is computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, Protocol, TypeVar

from octavo_engine.core.step import StepPlan, StepResult
from octavo_engine.sampling.settings import SamplingSettings
from octavo_engine.worker.executable import OpenedAdapter
from octavo_engine.worker.grammar import Grammar
from octavo_engine.worker.runner import Runner


class ExecutorError(RuntimeError):
    """The executor cannot go on, nor can the engine; the message is the whole reason."""


class Executed(NamedTuple):
    """What a plan gave, how many seconds computing it took, and how many of them passed in native code."""

    result: StepResult
    seconds: float
    kernel_seconds: float


Result = TypeVar("Result")
Given = TypeVar("Given", covariant=True)


class Pending(Protocol[Given]):
    """What will be there once it is asked for."""

    def result(self) -> Given:
        """Wait for it, or compute it now."""
        ...


class Executor(Protocol):
    """Plans in, results out, in order. A plan's result raises StepError if computing it failed."""

    def register(self, sequence: int, settings: SamplingSettings, grammar: Grammar | None = None) -> None:
        """Give a sequence's sampling settings, and the grammar it follows; before the plan that admits it."""
        ...

    def forget(self, sequence: int) -> None:
        """Drop the settings of a sequence that has ended."""
        ...

    def set_adapter(self, slot: int, adapter: OpenedAdapter | None) -> None:
        """Make `slot` mean an adapter, or nothing, for the plans to come."""
        ...

    def submit(self, plan: StepPlan) -> Pending[Executed]:
        """Queue a plan behind those given before."""
        ...

    def probe(self) -> Pending[None]:
        """Compute one token of nobody's, behind the plans given before; the result raises if that fails."""
        ...

    def check(self) -> None:
        """Raise ExecutorError if no plan can be computed any more. Asked once a turn of the loop."""
        ...

    def close(self) -> None:
        """Finish what was given and stop."""
        ...


def _execute(runner: Runner, plan: StepPlan) -> Executed:
    started, before = time.perf_counter(), runner.executable.kernel_seconds()
    result = runner.execute(plan)
    return Executed(result, time.perf_counter() - started, runner.executable.kernel_seconds() - before)


class _Deferred(Generic[Result]):
    """A computation that whoever asks for its result does."""

    def __init__(self, compute: Callable[[], Result]) -> None:
        self.result = compute


class InlineExecutor:
    """One runner on the thread that asks for the results. The oldest plan's result is asked for first, and once."""

    def __init__(self, runner: Runner) -> None:
        """Compute with `runner`."""
        self._runner = runner

    def register(self, sequence: int, settings: SamplingSettings, grammar: Grammar | None = None) -> None:
        """Give a sequence's sampling settings."""
        self._runner.register(sequence, settings, grammar)

    def forget(self, sequence: int) -> None:
        """Drop a sequence's settings. Only one plan is in flight, so none admits it any more."""
        self._runner.forget(sequence)

    def set_adapter(self, slot: int, adapter: OpenedAdapter | None) -> None:
        """Make `slot` mean an adapter, or nothing. No sequence of the plan in flight has a slot that changes."""
        self._runner.executable.set_adapter(slot, adapter)

    def submit(self, plan: StepPlan) -> Pending[Executed]:
        """Compute the plan when its result is asked for."""
        return _Deferred(lambda: _execute(self._runner, plan))

    def probe(self) -> Pending[None]:
        """Compute one token of nobody's when asked for."""
        return _Deferred(self._runner.probe)

    def check(self) -> None:
        """This process is all there is."""

    def close(self) -> None:
        """Nothing is left to stop."""


class InProcessExecutor:
    """One runner on its own thread. Kernels release the interpreter lock, so the loop goes on meanwhile."""

    def __init__(self, runner: Runner) -> None:
        """Start the thread with the first plan."""
        self._runner = runner
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="runner")

    def register(self, sequence: int, settings: SamplingSettings, grammar: Grammar | None = None) -> None:
        """Give a sequence's sampling settings, in order with the plans."""
        self._thread.submit(self._runner.register, sequence, settings, grammar)

    def forget(self, sequence: int) -> None:
        """Drop a sequence's settings, in order with the plans: one in flight may still admit it."""
        self._thread.submit(self._runner.forget, sequence)

    def set_adapter(self, slot: int, adapter: OpenedAdapter | None) -> None:
        """Make `slot` mean an adapter, or nothing, in order with the plans: one in flight may still use it."""
        self._thread.submit(self._runner.executable.set_adapter, slot, adapter)

    def submit(self, plan: StepPlan) -> Pending[Executed]:
        """Queue a plan."""
        return self._thread.submit(_execute, self._runner, plan)

    def probe(self) -> Pending[None]:
        """Compute one token of nobody's."""
        return self._thread.submit(self._runner.probe)

    def check(self) -> None:
        """This process is all there is."""

    def close(self) -> None:
        """Wait for the thread."""
        self._thread.shutdown()


def make_executor(runner: Runner, depth: int) -> Executor:
    """Return the executor for at most `depth` plans in flight."""
    return InlineExecutor(runner) if depth == 1 else InProcessExecutor(runner)
