"""What speaks while the loop computes: ticks during a long step, and the end of a step that hangs.

The loop's own thread runs the steps, so it can do neither. A tick says that the step it belongs to is still within its
time; a loop that is stuck anywhere else is not ticked for, and `/health` finds out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

import msgspec

from octavo_engine.core.step import StepPlan
from octavo_engine.ipc.messages import Snapshot, Step, ToEngine, TokensOut, ToServer
from octavo_engine.ipc.transport import PeerGone

TICK_SECONDS: Final = 0.5
"""Between two messages at the most; the promise is one a second."""


class EngineStuckError(RuntimeError):
    """A step did not end."""


class Endpoint(Protocol):
    """The engine's end of the pipes (`ipc.transport.EngineEndpoint`)."""

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        """Return what has arrived, waiting at most this long for the first message."""
        ...

    def send(self, message: ToServer) -> None:
        """Send one message."""
        ...

    def wake(self) -> None:
        """End the wait of `poll`, or its next one, now. Any thread may call it."""
        ...


class Outbox:
    """The way up, for two threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Send through `endpoint`, which one thread may use at a time."""
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._last_sent = time.monotonic()

    def send(self, message: ToServer) -> None:
        """Send one message."""
        with self._lock:
            self._endpoint.send(message)

    def step(self, outputs: tuple[TokensOut, ...], snapshot: Snapshot) -> None:
        """Send a step's outputs and the state after it."""
        with self._lock:
            self._endpoint.send(Step(outputs, snapshot))
            self._snapshot, self._last_sent = snapshot, time.monotonic()

    def tick(self) -> None:
        """Send the last state again, if nothing was sent for TICK_SECONDS: nothing but the time has changed."""
        if self.until_tick() > 0 or self._snapshot is None:
            return
        self.step((), msgspec.structs.replace(self._snapshot, time=time.time(), step_seconds=0.0))

    def until_tick(self) -> float:
        """Return the seconds until a tick is due."""
        return self._last_sent + TICK_SECONDS - time.monotonic()


class _Watched(NamedTuple):
    plan: StepPlan
    since: float


class Guardian:
    """A thread that looks after the step being computed. As a context manager it runs while the loop does."""

    def __init__(self, outbox: Outbox, step_timeout_seconds: float, give_up: Callable[[Exception], None]) -> None:
        """Tick through `outbox`; `give_up` is called, on the guardian's thread, for a step that does not end."""
        self._outbox = outbox
        self._timeout = step_timeout_seconds
        self._give_up = give_up
        self._watched: _Watched | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guardian", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the thread."""
        self._ended.set()
        self._thread.join()

    def watch(self, plan: StepPlan) -> None:
        """`plan` is being computed from now on, until `rest`."""
        self._watched = _Watched(plan, time.monotonic())

    def rest(self) -> None:
        """Nothing is being computed."""
        self._watched = None

    def _run(self) -> None:
        while not self._ended.wait(TICK_SECONDS / 2):
            watched = self._watched
            if watched is None:
                continue
            try:
                if time.monotonic() - watched.since > self._timeout:
                    raise EngineStuckError(
                        f"Step {watched.plan.number} has not ended after {self._timeout:.0f} s "
                        f"(sequences {', '.join(str(row.sequence) for row in watched.plan.rows)})."
                    )
                self._outbox.tick()
            except (EngineStuckError, PeerGone) as error:
                self._give_up(error)
                return
