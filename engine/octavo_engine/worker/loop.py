"""The engine loop: messages in, plans to the executor, results committed, one message out per step.

    poll -> submit / abort -> schedule until `depth` plans are in flight -> send -> finish the oldest -> commit

It waits on messages when there is nothing to compute and on the oldest plan otherwise, never on both and never in a
spin. It ticks at least once a second whatever it waits for: the tick is the heartbeat that `/health` reads. While a
step is computed on the loop's own thread the guardian ticks for it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from octavo_engine.core.config import Event
from octavo_engine.core.lifecycle import Lifecycle
from octavo_engine.core.step import NO_ADAPTER, StepPlan
from octavo_engine.ipc.messages import (
    Abort,
    AdapterFailed,
    AdapterLoaded,
    AdapterUnloaded,
    LoadAdapter,
    Refused,
    Shutdown,
    Snapshot,
    Submit,
    ToEngine,
    TokensOut,
    UnloadAdapter,
)
from octavo_engine.sampling.settings import SamplingSettings
from octavo_engine.worker.adapters import AdapterTable, Open
from octavo_engine.worker.executor import Executed, Executor, ExecutorError, Pending
from octavo_engine.worker.failures import StepError
from octavo_engine.worker.grammar_compiler import Compiled, GrammarCompiler, GrammarQueue
from octavo_engine.worker.guardian import Endpoint, EngineStuckError, Guardian, Outbox
from octavo_engine.worker.requests import RequestTable, core_request, settings_of

TAKE_SECONDS: Final = 0.01
"""For taking messages between two steps; what is left waits for the next turn."""
STEP_FAILED: Final = "The engine failed while computing this request."

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class EngineBrokenError(RuntimeError):
    """A step failed and the backend computes nothing any more: alive would be a lie."""


class EngineLoop:
    """Runs until `Shutdown`, on the thread that calls `run`."""

    def __init__(
        self,
        endpoint: Endpoint,
        scheduler: Lifecycle,
        executor: Executor,
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...] = (),
        depth: int = 1,
        step_timeout_seconds: float = 60.0,
        give_up: Callable[[Exception], None] | None = None,
        compiler: GrammarCompiler | None = None,
        open_adapter: Open,
    ) -> None:
        """Keep at most `depth` plans in flight (1 or 2). Without a `compiler` no request may have a grammar.

        `give_up` is told, on another thread, why the engine cannot go on while its loop waits for a step that does not
        end; without it the loop raises that itself, once the step has ended after all.
        """
        self._gave_up: list[Exception] = []
        self._endpoint = endpoint
        self._outbox = Outbox(endpoint)
        self._guardian = Guardian(self._outbox, step_timeout_seconds, give_up or self._gave_up.append)
        self._scheduler = scheduler
        self._executor = executor
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._depth = depth
        self._requests = RequestTable()
        self._grammars = None if compiler is None else GrammarQueue(compiler, endpoint.wake)
        self._adapters = AdapterTable(open_adapter, endpoint.wake)
        self._unregistered: dict[int, SamplingSettings] = {}
        """Of the sequences whose grammar is being compiled."""
        self._in_flight: deque[tuple[StepPlan, Pending[Executed]]] = deque()
        self._backlog: deque[ToEngine] = deque()
        self._outputs: list[TokensOut] = []
        self._freed: list[int] = []
        """Slots of adapters that were dropped: told behind the last outputs that had them."""
        self._received = 0
        self._news = True
        self._step_seconds = self._kernel_seconds = self._idle_seconds = 0.0
        self._began = time.monotonic()
        self._stopping = False

    def run(self) -> None:
        """Serve until `Shutdown`. Raises whatever leaves the engine in no state to go on."""
        try:
            with self._guardian:
                self._serve()
        finally:
            self._adapters.close()
            if self._grammars is not None:
                self._grammars.close()

    def _serve(self) -> None:
        self._send()
        while not self._stopping:
            self._executor.check()
            self._take_messages()
            self._take_grammars()
            self._take_adapters()
            while len(self._in_flight) < self._depth and (plan := self._scheduler.schedule()) is not None:
                self._in_flight.append((plan, self._submit_plan(plan)))
            # Told only now: where the executor has a thread, it computes while the last outputs are written.
            if self._news or self._outbox.until_tick() <= 0:
                self._send()
            if self._in_flight:
                self._finish_oldest()

    def _patience(self) -> float:
        """How long to wait for a message: not at all while there is something to commit, to say or to take."""
        busy = self._in_flight or self._news or self._backlog
        return 0.0 if busy else max(0.0, self._outbox.until_tick())

    # --- messages -----------------------------------------------------------------------------------------------
    def _take_messages(self) -> None:
        """Take messages in order, for a bounded time: a flood of long prompts must not hold up running streams."""
        patience, asked = self._patience(), time.monotonic()
        self._backlog += self._endpoint.poll(patience)
        now = time.monotonic()
        self._idle_seconds += now - asked if patience > 0 else 0.0
        deadline = now + TAKE_SECONDS
        while self._backlog and not self._stopping:
            self._take(self._backlog.popleft())
            if time.monotonic() > deadline:
                break

    def _take(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self._received += 1
                self._news = True
                self._submit(message)
            case Abort():
                self._abort(message)
            case LoadAdapter():
                self._adapters.load(message.slot, Path(message.folder))
            case UnloadAdapter():
                self._let_go(self._adapters.unload(message.slot))
            case Shutdown():
                self._stopping = True

    def _submit(self, submit: Submit) -> None:
        sequences = self._requests.add(submit.request, submit.n)
        try:
            settings = [
                settings_of(submit, choice, self._vocab_size, self._eos_token_ids) for choice in range(submit.n)
            ]
            digest = self._adapters.digest(submit.adapter)
            request = core_request(submit, sequences, self._vocab_size, time.monotonic(), digest)
            if request.blocked and self._grammars is None:
                raise ValueError("This engine was started without the model's tokens, which a grammar needs.")
            refusal = self._scheduler.submit(request)
        except ValueError as error:
            # The API process has checked the request, so this is its mistake: the request ends, the engine goes on.
            logger.warning("Request %d is not valid: %s", submit.request, error)
            self._emit([Event(sequence, finish="error", detail=str(error)) for sequence in sequences])
            return
        if refusal is None:
            self._adapters.begin(submit.adapter, sequences)
            self._register(submit.sampling.grammar, sequences, settings)
            return
        for sequence in sequences:
            self._requests.remove(sequence)
        self._outbox.send(Refused(submit.request, refusal.reason, refusal.detail))

    def _register(self, grammar: str, sequences: tuple[int, ...], settings: list[SamplingSettings]) -> None:
        """Give the settings of sequences that may be admitted; with a grammar they wait until it has been compiled."""
        if grammar and self._grammars is not None:
            self._unregistered.update(zip(sequences, settings, strict=True))
            self._grammars.put(sequences, grammar)
            return
        for sequence, sequence_settings in zip(sequences, settings, strict=True):
            self._executor.register(sequence, sequence_settings)

    def _take_grammars(self) -> None:
        """Let the sequences go on whose grammar has been compiled, and end those whose grammar cannot be."""
        for compiled in self._grammars.finished() if self._grammars is not None else ():
            self._release(compiled)

    def _take_adapters(self) -> None:
        """Let requests have the adapters that have been opened, and say what became of each."""
        for opened in self._adapters.opened():
            if opened.adapter is None:
                self._outbox.send(AdapterFailed(opened.slot, opened.error))
                continue
            try:
                self._executor.set_adapter(opened.slot, opened.adapter)
            except MemoryError as error:
                logger.warning("An adapter is not loaded: %s", error)
                self._adapters.refuse(opened.slot)
                self._outbox.send(AdapterFailed(opened.slot, str(error)))
                continue
            self._outbox.send(AdapterLoaded(opened.slot, opened.adapter.digest))

    def _let_go(self, slot: int) -> None:
        """Drop a slot's adapter, unless there is none to drop."""
        if slot != NO_ADAPTER:
            self._executor.set_adapter(slot, None)
            self._news = True
            self._freed.append(slot)

    def _release(self, compiled: Compiled) -> None:
        for place, sequence in enumerate(compiled.sequences):
            settings = self._unregistered.pop(sequence, None)
            if settings is None:
                continue  # aborted meanwhile
            if compiled.error:
                event = self._scheduler.give_up(sequence, compiled.error)
                self._emit([event] if event else [])
            elif self._scheduler.unblock(sequence):
                self._executor.register(sequence, settings, compiled.grammars[place])

    def _abort(self, abort: Abort) -> None:
        for sequence in self._requests.find(abort.request, abort.choice):
            event = self._scheduler.abort(sequence)
            if event is not None:
                self._executor.forget(sequence)
                self._unregistered.pop(sequence, None)
                self._emit([event])

    # --- steps --------------------------------------------------------------------------------------------------
    def _submit_plan(self, plan: StepPlan) -> Pending[Executed]:
        """Hand a plan over, in the guardian's care: an executor may do much of the work at once."""
        self._guardian.watch(plan)
        try:
            return self._executor.submit(plan)
        finally:
            self._guardian.rest()

    def _finish_oldest(self) -> None:
        plan, pending = self._in_flight[0]
        try:
            executed = self._result(plan, pending)
        except StepError:
            logger.exception("A step failed: its requests end, the others go on")
            self._probe(plan)
            self._in_flight.popleft()
            events = self._scheduler.fail(plan, STEP_FAILED)
        else:
            self._in_flight.popleft()
            self._step_seconds = executed.seconds
            self._kernel_seconds += executed.kernel_seconds
            self._scheduler.measured(plan, executed.seconds)
            events = self._scheduler.commit(plan, executed.result)
        for event in events:
            if event.finish:
                self._executor.forget(event.sequence)
        self._emit(events)

    def _result(self, plan: StepPlan, pending: Pending[Result]) -> Result:
        """Wait for a plan (or the probe behind it), or compute it, in the guardian's care."""
        self._guardian.watch(plan)
        try:
            return pending.result()
        finally:
            self._guardian.rest()
            if self._gave_up:
                raise self._gave_up[0]

    def _probe(self, plan: StepPlan) -> None:
        """Find out whether a request or the engine is to blame for a failed step. Raises EngineBrokenError."""
        try:
            self._result(plan, self._executor.probe())
        except (EngineStuckError, ExecutorError):
            raise
        except Exception as error:
            raise EngineBrokenError(f"After step {plan.number} nothing can be computed any more: {error}") from error

    # --- to the API process -------------------------------------------------------------------------------------
    def _emit(self, events: list[Event]) -> None:
        """Keep what happened for the next message."""
        self._news = True
        self._outputs += self._requests.outputs(events)
        for event in events:
            if event.finish:
                self._requests.remove(event.sequence)
                self._let_go(self._adapters.end(event.sequence))

    def _send(self) -> None:
        core = self._scheduler.snapshot(time.monotonic())
        snapshot = Snapshot(
            received=self._received,
            time=time.time(),
            step_seconds=self._step_seconds,
            busy_seconds=time.monotonic() - self._began - self._idle_seconds,
            kernel_seconds=self._kernel_seconds,
            **core._asdict(),
        )
        self._outbox.step(tuple(self._outputs), snapshot)
        for slot in self._freed:
            self._outbox.send(AdapterUnloaded(slot))
        self._outputs.clear()
        self._freed.clear()
        self._news, self._step_seconds = False, 0.0
