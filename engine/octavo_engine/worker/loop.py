"""The engine loop: messages in, plans to the executor, results committed, one message out per step.

    poll -> submit / abort -> schedule until `depth` plans are in flight -> send -> wait for the oldest -> commit

It waits on messages when there is nothing to compute and on the oldest plan otherwise, never on both and never in a
spin. It ticks at least once a second whatever it waits for: the tick is the heartbeat that `/health` reads.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import Future, wait
from typing import Any, Final, Protocol

from octavo_engine.core.config import Event
from octavo_engine.core.lifecycle import Lifecycle
from octavo_engine.core.step import StepPlan
from octavo_engine.ipc.messages import Abort, Refused, Shutdown, Snapshot, Step, Submit, ToEngine, TokensOut, ToServer
from octavo_engine.worker.executor import Executed, Executor
from octavo_engine.worker.requests import RequestTable, core_request, settings_of
from octavo_engine.worker.runner import StepError

TICK_SECONDS: Final = 0.5
"""Between two messages at the most; the promise is one a second."""
TAKE_SECONDS: Final = 0.01
"""For taking messages between two steps; what is left waits for the next turn."""
STEP_FAILED: Final = "The engine failed while computing this request."

logger = logging.getLogger(__name__)


class EngineStuckError(RuntimeError):
    """A step did not end."""


class EngineBrokenError(RuntimeError):
    """A step failed and the backend computes nothing any more: alive would be a lie."""


class Endpoint(Protocol):
    """The engine's end of the pipes (`ipc.transport.EngineEndpoint`)."""

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        """Return what has arrived, waiting at most this long for the first message."""
        ...

    def send(self, message: ToServer) -> None:
        """Send one message."""
        ...


class EngineLoop:
    """Runs until `Shutdown`. Everything but computing happens on the thread that calls `run`."""

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
    ) -> None:
        """Keep at most `depth` plans in flight (1 or 2)."""
        self._endpoint = endpoint
        self._scheduler = scheduler
        self._executor = executor
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._depth = depth
        self._step_timeout_seconds = step_timeout_seconds
        self._requests = RequestTable()
        self._in_flight: deque[tuple[StepPlan, Future[Executed]]] = deque()
        self._backlog: deque[ToEngine] = deque()
        self._outputs: list[TokensOut] = []
        self._received = 0
        self._news = True
        self._last_sent = 0.0
        self._step_seconds = 0.0
        self._stopping = False

    def run(self) -> None:
        """Serve until `Shutdown`. Raises whatever leaves the engine in no state to go on."""
        while not self._stopping:
            self._take_messages()
            while len(self._in_flight) < self._depth and (plan := self._scheduler.schedule()) is not None:
                self._in_flight.append((plan, self._executor.submit(plan)))
            # Told only now: the executor computes the next step while the last one's outputs are written.
            if self._news or self._until_tick() <= 0:
                self._send()
            if self._in_flight:
                self._finish_oldest()

    def _patience(self) -> float:
        """How long to wait for a message: not at all while there is something to commit, to say or to take."""
        busy = self._in_flight or self._news or self._backlog
        return 0.0 if busy else max(0.0, self._until_tick())

    # --- messages -----------------------------------------------------------------------------------------------
    def _take_messages(self) -> None:
        """Take messages in order, for a bounded time: a flood of long prompts must not hold up running streams."""
        self._backlog += self._endpoint.poll(self._patience())
        deadline = time.monotonic() + TAKE_SECONDS
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
            case Shutdown():
                self._stopping = True

    def _submit(self, submit: Submit) -> None:
        sequences = self._requests.add(submit.request, submit.n)
        try:
            settings = [
                settings_of(submit, choice, self._vocab_size, self._eos_token_ids) for choice in range(submit.n)
            ]
            request = core_request(submit, sequences, self._vocab_size, time.monotonic())
            refusal = self._scheduler.submit(request)
        except ValueError as error:
            # The API process has checked the request, so this is its mistake: the request ends, the engine goes on.
            logger.warning("Request %d is not valid: %s", submit.request, error)
            self._emit([Event(sequence, finish="error", detail=str(error)) for sequence in sequences])
            return
        if refusal is None:
            for sequence, sequence_settings in zip(sequences, settings, strict=True):
                self._executor.register(sequence, sequence_settings)
            return
        for sequence in sequences:
            self._requests.remove(sequence)
        self._endpoint.send(Refused(submit.request, refusal.reason, refusal.detail))

    def _abort(self, abort: Abort) -> None:
        for sequence in self._requests.find(abort.request, abort.choice):
            event = self._scheduler.abort(sequence)
            if event is not None:
                self._executor.forget(sequence)
                self._emit([event])

    # --- steps --------------------------------------------------------------------------------------------------
    def _finish_oldest(self) -> None:
        plan, future = self._in_flight[0]
        self._wait(plan, future)
        self._in_flight.popleft()
        try:
            result, self._step_seconds = future.result()
            self._scheduler.measured(plan, self._step_seconds)
        except StepError:
            logger.exception("A step failed: its requests end, the others go on")
            self._probe(plan)
            events = self._scheduler.fail(plan, STEP_FAILED)
        else:
            events = self._scheduler.commit(plan, result)
        for event in events:
            if event.finish:
                self._executor.forget(event.sequence)
        self._emit(events)

    def _probe(self, plan: StepPlan) -> None:
        """Find out whether a request or the engine is to blame for a failed step. Raises EngineBrokenError."""
        probe = self._executor.probe()
        self._wait(plan, probe)
        error = probe.exception()
        if error is not None:
            raise EngineBrokenError(f"After step {plan.number} nothing can be computed any more: {error}") from error

    def _wait(self, plan: StepPlan, future: Future[Any]) -> None:
        """Wait for a plan (or the probe behind it), ticking meanwhile."""
        started = time.monotonic()
        while not wait([future], timeout=max(0.0, self._until_tick())).done:
            if time.monotonic() - started > self._step_timeout_seconds:
                raise EngineStuckError(
                    f"Step {plan.number} has not ended after {self._step_timeout_seconds:.0f} s "
                    f"(sequences {', '.join(str(row.sequence) for row in plan.rows)})."
                )
            self._send()

    # --- to the API process -------------------------------------------------------------------------------------
    def _emit(self, events: list[Event]) -> None:
        """Keep what happened for the next message."""
        self._news = True
        self._outputs += self._requests.outputs(events)
        for event in events:
            if event.finish:
                self._requests.remove(event.sequence)

    def _send(self) -> None:
        core = self._scheduler.snapshot(time.monotonic())
        snapshot = Snapshot(
            received=self._received, time=time.time(), step_seconds=self._step_seconds, **core._asdict()
        )
        self._endpoint.send(Step(tuple(self._outputs), snapshot))
        self._outputs.clear()
        self._news, self._step_seconds = False, 0.0
        self._last_sent = time.monotonic()

    def _until_tick(self) -> float:
        return self._last_sent + TICK_SECONDS - time.monotonic()
