"""The API process's view of the engine: what it is, how it is, and which answer belongs to which request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import msgspec

from octavo_engine import contract
from octavo_engine.contract import Outcome
from octavo_engine.ipc import messages as m
from octavo_engine.ipc.transport import PeerGone
from octavo_engine.server.adapters import Adapters
from octavo_engine.server.counters import Counters
from octavo_engine.server.errors import ApiError, engine_failed, invalid, queue_full, unavailable
from octavo_engine.server.heartbeat import Heartbeat
from octavo_engine.server.jobs import Prepared
from octavo_engine.server.ticket import Ticket

log = logging.getLogger(__name__)

_NO_TOKEN_YET: Final = -1.0
_LOOK_SECONDS: Final = 0.5
"""Shortest time between two looks at the engine's silence."""


class Link(Protocol):
    """The pipes to the engine (`ipc.transport.ServerEndpoint`)."""

    def send(self, message: m.ToEngine) -> None:
        """Send without waiting. Raises PeerGone."""
        ...

    async def receive(self) -> m.ToServer:
        """Wait for the next message."""
        ...


@dataclass(slots=True)
class _Request:
    """One Submit: the first of its choices' indices in the ticket, the choices still open, and its clocks."""

    ticket: Ticket
    base: int
    arrived: float
    open: set[int]
    last_token: list[float]
    accepted: bool = False


class _Unseen(NamedTuple):
    """A Submit the engine has not confirmed: it is in its queue for all that admission knows."""

    serial: int
    request: int
    sequences: int
    tokens: int


@dataclass
class Load:
    """What waits at the engine, by its last snapshot and by what has been sent since."""

    sequences: int = 0
    tokens: int = 0
    running: int = 0


@dataclass
class _Sent:
    """Submits in order, and those not yet confirmed."""

    serial: int = 0
    unseen: deque[_Unseen] = field(default_factory=deque)
    sequences: int = 0
    tokens: int = 0


class EngineClient:
    """Sends requests to one engine, and after it to the next, and routes what it answers. All on one event loop."""

    def __init__(
        self,
        counters: Counters,
        health_timeout: float,
        on_progress: Callable[[m.Progress], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        max_adapters: int = contract.MAX_ADAPTERS,
    ) -> None:
        """Make the client of an engine that is still to be connected."""
        self.adapters = Adapters(self._send, max_adapters)
        self._link: Link | None = None
        self._counters = counters
        self._clock = clock
        self._health_timeout = health_timeout
        self._on_progress = on_progress
        self._requests: dict[int, _Request] = {}
        self._next_request = 0
        self.was_ready = False
        """Whether an engine has ever had its model loaded."""
        self.recovering = False
        """Whether an engine has failed and none has loaded since."""
        self.failed = asyncio.Event()
        self.ready_event = asyncio.Event()
        self._begin()

    def _begin(self) -> None:
        """Nothing is known of the engine yet."""
        self._heartbeat = Heartbeat(self._health_timeout)
        self._sent = _Sent()
        self.loaded: m.Loaded | None = None
        self.snapshot: m.Snapshot | None = None
        self.progress: m.Progress | None = None
        self.failure: str | None = None
        self.failed.clear()
        self.ready_event.clear()

    def connect(self, link: Link) -> None:
        """Speak to the engine at the other end of `link` from now on; nothing is open of an earlier one."""
        self._link = link
        self._begin()

    # --- State ---
    @property
    def alive(self) -> bool:
        """Whether the engine's process runs and its loop ticks (loading, busy and idle are alive).

        Loading again after a failure is not: who kills this process meanwhile loses nothing.
        """
        return self.failure is None and not self.recovering and self._heartbeat.alive(self._clock())

    @property
    def stopped_sentence(self) -> str:
        """What is said of an engine that has failed, or of the next one that loads."""
        if self.failure is None:
            return "The engine has stopped, and is loading the model again."
        return f"The engine has stopped: {self.failure.rstrip('.')}."

    @property
    def silent_seconds(self) -> float:
        """Seconds since the engine's last tick, 0 while it has not ticked yet."""
        return self._heartbeat.age(self._clock())

    @property
    def ready(self) -> bool:
        """Whether the engine takes requests."""
        return self.loaded is not None and self.alive and self.adapters.settled

    @property
    def in_flight(self) -> int:
        """Sequences admitted and not ended."""
        return sum(len(request.open) for request in self._requests.values() if request.accepted)

    @property
    def open_requests(self) -> int:
        """Requests sent and not ended, confirmed or not."""
        return len(self._requests)

    def load(self) -> Load:
        """Return what waits: the snapshot's queue and what the engine has not confirmed yet."""
        snapshot = self.snapshot
        if snapshot is None:
            return Load(self._sent.sequences, self._sent.tokens)
        return Load(
            snapshot.waiting + self._sent.sequences, snapshot.waiting_tokens + self._sent.tokens, snapshot.running
        )

    def check_ready(self) -> m.Loaded:
        """Return what is loaded. Raises the ApiError (503, nothing began) of an engine that takes no requests."""
        if self.failure is not None:
            raise unavailable(self.stopped_sentence)
        if self.loaded is None:
            if self.recovering:
                raise unavailable(self.stopped_sentence)
            stage = f" ({self.progress.stage}, {self.progress.fraction:.0%})" if self.progress else ""
            raise unavailable(f"The model is still loading{stage}.")
        if not self.alive:
            raise unavailable(f"The engine has not answered for {self.silent_seconds:.0f} s.")
        return self.loaded

    # --- Requests ---
    def open(self, prepared: Prepared, salt: str, arrived: float) -> Ticket:
        """Send a request's prompts to the engine. Raises ApiError (503) if it cannot be reached."""
        loaded = self.check_ready()
        first = self._next_request
        count = len(prepared.prompts)
        ids = range(first, first + count)
        adapter = self.adapters.slot(prepared.adapter)
        self._next_request += count
        ticket = Ticket(
            count,
            count * prepared.n,
            end_choice=lambda choice: self._end_choice(first + choice // prepared.n, choice % prepared.n),
            close=lambda: self._close(ids),
        )
        now = self._clock()
        try:
            for index, prompt in enumerate(prepared.prompts):
                tokens = len(prompt) // 4
                submit = _submit(first + index, prompt, prepared, loaded.max_model_len)
                self._send(
                    msgspec.structs.replace(submit, salt=salt, age_seconds=max(now - arrived, 0.0), adapter=adapter)
                )
                self._requests[first + index] = _Request(
                    ticket, index * prepared.n, arrived, set(range(prepared.n)), [_NO_TOKEN_YET] * prepared.n
                )
                self._note_sent(_Unseen(self._sent.serial + 1, first + index, prepared.n, tokens))
        except PeerGone as error:
            self._close(ids)
            raise unavailable("The engine does not respond.") from error
        return ticket

    def _note_sent(self, unseen: _Unseen) -> None:
        self._sent.serial = unseen.serial
        self._sent.unseen.append(unseen)
        self._sent.sequences += unseen.sequences
        self._sent.tokens += unseen.tokens

    def _end_choice(self, request: int, choice: int) -> None:
        """A stop string ended a choice: the engine need not go on."""
        entry = self._requests.get(request)
        if entry is not None and choice in entry.open:
            self._count_end(request, entry, choice, "stop")
            self._abort(m.Abort(request, choice))

    def _close(self, ids: range) -> None:
        """End what is still open of the given requests: nobody waits for it any more."""
        for request in ids:
            entry = self._requests.get(request)
            if entry is None:
                continue
            if not entry.accepted:
                self._accept(request, entry)
            for choice in sorted(entry.open):
                self._count_end(request, entry, choice, "abort")
            self._abort(m.Abort(request))

    def _send(self, message: m.ToEngine) -> None:
        if self._link is None:
            raise PeerGone("no engine is connected")
        self._link.send(message)

    def _abort(self, message: m.Abort) -> None:
        if self.failure is not None:
            return
        try:
            self._send(message)
        except PeerGone:
            log.warning("The engine took no abort of request %d: it has gone.", message.request)

    def _count_end(self, request: int, entry: _Request, choice: int, outcome: Outcome) -> None:
        entry.open.discard(choice)
        self._counters.outcomes[outcome] += 1
        self._counters.request_seconds.observe(self._clock() - entry.arrived)
        if not entry.open:
            self._requests.pop(request, None)

    def _accept(self, request: int, entry: _Request) -> None:
        entry.accepted = True
        self._counters.admitted += len(entry.open)
        entry.ticket.accept_one()

    # --- Messages ---
    async def run(self) -> None:
        """Receive until the engine fails or the task is cancelled."""
        link = self._link
        if link is None:
            raise RuntimeError("no engine is connected")
        while self.failure is None:
            try:
                message = await link.receive()
            except msgspec.DecodeError as error:
                self.fail(f"it sent a message that cannot be read ({error})")
                return
            self.handle(message)

    async def watch(self) -> None:
        """Give up an engine that falls silent, until it fails or the task is cancelled.

        Only at the second look: if this process was held up itself, what the engine said meanwhile is read first.
        """
        silent = False
        while self.failure is None:
            left = self._heartbeat.seconds_left(self._clock())
            if left < 0 and silent:
                self.fail(f"it has not answered for {self.silent_seconds:.0f} s")
                return
            silent = left < 0
            await asyncio.sleep(max(left, _LOOK_SECONDS))

    def _tick(self, now: float, step_seconds: float) -> None:
        self._heartbeat.tick(now, step_seconds)

    def handle(self, message: m.ToServer) -> None:
        """Take one message in."""
        match message:
            case m.Step():
                self._step(message)
            case m.Refused():
                self._refused(message)
            case m.Progress():
                self.progress = message
                self._on_progress(message)
            case m.Loaded():
                self.loaded = message
                self.was_ready, self.recovering = True, False
                self.ready_event.set()
                self._tick(self._clock(), 0.0)
                self._reload_adapters()
            case m.AdapterLoaded() | m.AdapterFailed() | m.AdapterUnloaded():
                self.adapters.handle(message)
            case m.Failed():
                self.fail(message.detail)

    def _reload_adapters(self) -> None:
        try:
            self.adapters.engine_loaded()
        except PeerGone:
            log.warning("The engine took no adapters: it has gone.")

    def fail(self, detail: str) -> None:
        """The engine has gone: every open request ends with an error."""
        if self.failure is not None:
            return
        self.failure = detail
        self.recovering = True
        self.fail_open(engine_failed(f"The engine stopped while the request was running: {detail}"))
        self.failed.set()

    def fail_open(self, error: ApiError) -> None:
        """End every open request with `error`."""
        for request, entry in list(self._requests.items()):
            if not entry.accepted:
                self._accept(request, entry)
            for choice in sorted(entry.open):
                self._count_end(request, entry, choice, "error")
            entry.ticket.fail(error)
            self._abort(m.Abort(request))

    def _refused(self, message: m.Refused) -> None:
        entry = self._requests.pop(message.request, None)
        if entry is None:
            return
        if message.reason == "queue_full":
            entry.ticket.fail(queue_full())
        else:
            entry.ticket.fail(invalid(message.detail, param="prompt", code="context_length_exceeded"))

    def _step(self, step: m.Step) -> None:
        now = self._clock()
        snapshot = step.snapshot
        self._tick(now, snapshot.step_seconds)
        self.snapshot = snapshot
        if snapshot.step_seconds > 0:
            self._counters.step_seconds.observe(snapshot.step_seconds)
        unseen = self._sent.unseen
        while unseen and unseen[0].serial <= snapshot.received:
            seen = unseen.popleft()
            self._sent.sequences -= seen.sequences
            self._sent.tokens -= seen.tokens
            entry = self._requests.get(seen.request)
            if entry is not None and not entry.accepted:
                self._counters.prompt_tokens += seen.tokens
                self._accept(seen.request, entry)
        for out in step.outputs:
            self._output(out, now)

    def _output(self, out: m.TokensOut, now: float) -> None:
        entry = self._requests.get(out.request)
        if entry is None or out.choice not in entry.open:
            return
        # The other choices of a prompt find what the first one computed: that is no hit of the client's.
        if out.started and out.choice == 0:
            entry.ticket.cached_tokens += out.cached_tokens
        if out.tokens:
            self._observe_tokens(entry, out, now)
        if out.finish:
            self._count_end(out.request, entry, out.choice, out.finish)
        if out.tokens or out.finish or out.prompt_logprobs:
            entry.ticket.deliver(entry.base + out.choice, out)

    def _observe_tokens(self, entry: _Request, out: m.TokensOut, now: float) -> None:
        counters = self._counters
        counters.generated_tokens += len(out.tokens)
        last = entry.last_token[out.choice]
        entry.last_token[out.choice] = now
        more = len(out.tokens)
        if last == _NO_TOKEN_YET:
            counters.time_to_first_token.observe(now - entry.arrived)
            last, more = now, more - 1
        if more:
            counters.inter_token.observe((now - last) / more, more)


def _submit(request: int, prompt: bytes, prepared: Prepared, max_model_len: int) -> m.Submit:
    max_tokens = min(prepared.stop.max_tokens, max_model_len - len(prompt) // 4)
    min_tokens = min(prepared.stop.min_tokens, max_tokens)
    return m.Submit(
        request=request,
        prompt=prompt,
        sampling=prepared.sampling,
        stop=msgspec.structs.replace(prepared.stop, max_tokens=max_tokens, min_tokens=min_tokens),
        n=prepared.n,
        priority=prepared.priority,
        prompt_logprobs=prepared.prompt_alternatives,
        pooled=prepared.embedding is not None,
    )
