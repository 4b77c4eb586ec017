"""A simulated pod: from its creation over a node, image, weights and warm-up to Ready, cordon, drain and its end.

created -> (no node: Unschedulable) -> image, weights, warm-up: Starting -> Ready -> Terminating -> gone
                                       ^ from here its GPU is paid for                             ^ until here
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import simpy

from octavo_operator.autoscale.types import KVBlocks, Pod, PodState

from .calibrate import Calibration
from .engine import Engine
from .faults import Faults
from .policy import PodMetrics
from .sequence import Sequence
from .ticket import Ticket


@dataclass(frozen=True, slots=True)
class Startup:
    """How long a pod takes from its creation to Ready.

    `seconds` is the median of the whole; `schedule_seconds` of it go until a node is found. Image, weights and warm-up
    share the rest, each log-normal around its share with `sigma`, drawn by pod: pod 3 is as slow under every policy.
    """

    seconds: float = 120.0
    schedule_seconds: float = 1.0
    image_share: float = 0.2
    weights_share: float = 0.65
    sigma: float = 0.15

    def phases(self, seed: int, ordinal: int) -> tuple[float, float, float]:
        """Return the seconds of image, weights and warm-up of one pod."""
        rng = random.Random(f"startup {seed} {ordinal}")
        rest = max(0.0, self.seconds - self.schedule_seconds)
        shares = self.image_share, self.weights_share, 1 - self.image_share - self.weights_share
        image, weights, warm_up = (share * rest * math.exp(rng.gauss(0, self.sigma)) for share in shares)
        return image, weights, warm_up


class Nodes:
    """Places for pods, and the pods that wait for one, first come first served."""

    def __init__(self, env: simpy.Environment, places: int) -> None:
        self._env = env
        self.free = places
        self._queue: deque[tuple[SimPod, simpy.Event]] = deque()

    def place(self, pod: SimPod) -> simpy.Event:
        """Return an event that comes when the pod has a place; at once if there is one."""
        event = self._env.event()
        if self.free:
            self.free -= 1
            event.succeed()
        else:
            pod.state = PodState.UNSCHEDULABLE
            self._queue.append((pod, event))
        return event

    def leave(self) -> None:
        """Take a place back, and give it to the next pod that still wants one."""
        while self._queue:
            pod, event = self._queue.popleft()
            if not pod.gone:
                event.succeed()
                return
        self.free += 1


class Owner(Protocol):
    """Who is told what happens to a pod."""

    def pod_ready(self, pod: SimPod) -> None:
        """`pod` takes requests from now on."""
        ...

    def answered(self, ticket: Ticket) -> None:
        """A request has its first token; told only if `PodSettings.watches_starts`."""
        ...

    def ended(self, ticket: Ticket, pod: SimPod) -> None:
        """A request on `pod` has ended."""
        ...

    def pod_gone(self, pod: SimPod) -> None:
        """`pod` is no more."""
        ...


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What all pods of a fleet have in common."""

    calibration: Calibration
    startup: Startup
    faults: Faults
    seed: int
    watches_starts: bool = False


class SimPod:
    """One pod. It is driven by the environment: whoever looks at its engine calls `sync` first."""

    def __init__(self, env: simpy.Environment, ordinal: int, settings: PodSettings, nodes: Nodes, owner: Owner) -> None:
        """Create it; `begin` starts its life."""
        self.env = env
        self.ordinal = ordinal
        self.settings = settings
        self.state = PodState.STARTING
        self.engine: Engine | None = None
        self.created_at = env.now
        self.scheduled_at: float | None = None
        self.ready_at: float | None = None
        self.gone_at: float | None = None
        self.cordoned_at: float | None = None
        self.deletion_cost = 0
        self._nodes = nodes
        self._owner = owner
        self._tickets: dict[int, Ticket] = {}
        self._alarm = 0
        self.uid = f"pod-{ordinal}"

    # --- Life ------------------------------------------------------------------------------------------------------
    def begin(self, *, warm: bool) -> None:
        """Start it; a `warm` one is ready at once if a node has room."""
        if warm and self._nodes.free:
            self._nodes.free -= 1
            self.scheduled_at = self.env.now
            self._become_ready()
        else:
            self.env.process(self._start())

    def _start(self) -> Generator[simpy.Event, Any, None]:
        startup, faults = self.settings.startup, self.settings.faults
        yield self.env.timeout(startup.schedule_seconds)
        if pending := faults.pending_seconds.get(self.ordinal):
            self.state = PodState.UNSCHEDULABLE
            yield self.env.timeout(pending)
        if self.gone:
            return
        yield self._nodes.place(self)
        self.state = PodState.STARTING
        self.scheduled_at = self.env.now
        for seconds in startup.phases(self.settings.seed, self.ordinal):
            yield self.env.timeout(seconds)
            if self.gone:
                return
        if self.ordinal not in faults.never_ready:
            self._become_ready()

    def _become_ready(self) -> None:
        self.state = PodState.READY
        self.ready_at = self.env.now
        self.engine = Engine(self.settings.calibration, self.env.now)
        if self.settings.watches_starts:
            self.engine.started = []
        self._owner.pod_ready(self)

    @property
    def gone(self) -> bool:
        """Say whether it is no more."""
        return self.gone_at is not None

    @property
    def serving(self) -> bool:
        """Ready and unmarked: it gets new requests."""
        return self.state is PodState.READY and self.cordoned_at is None

    def delete(self, grace_seconds: float) -> None:
        """Take it away: at once if it never served, else when it is empty or after its grace, then streams are cut."""
        if self.state is PodState.TERMINATING or self.gone:
            return
        if self.engine is None:
            self._vanish()
            return
        self.state = PodState.TERMINATING
        if not self._tickets:
            self._vanish()
            return
        grace = self.env.timeout(grace_seconds)
        assert grace.callbacks is not None
        grace.callbacks.append(lambda _: self.kill())

    def kill(self) -> None:
        """End it now: what it streams is cut."""
        if self.gone:
            return
        self.sync()
        engine, self._alarm = self.engine, self._alarm + 1
        if engine is not None:
            for sequence in engine.abandon():
                ticket = self._tickets.pop(sequence.order)
                ticket.first_token_at = sequence.first_token_at
                ticket.end("cut", self.env.now)
                self._owner.ended(ticket, self)
        self._vanish()

    def _vanish(self) -> None:
        if self.gone:
            return
        held_a_place = self.scheduled_at is not None
        self.gone_at = self.env.now
        self.state = PodState.ENDED
        if held_a_place:
            self._nodes.leave()
        self._owner.pod_gone(self)

    def gpu_seconds(self, until: float) -> float:
        """Return how long its GPU was taken, up to a time."""
        if self.scheduled_at is None:
            return 0.0
        end = until if self.gone_at is None else min(until, self.gone_at)
        return max(0.0, end - self.scheduled_at)

    # --- Requests --------------------------------------------------------------------------------------------------
    @property
    def requests(self) -> int:
        """Requests that were sent here and have not ended."""
        return len(self._tickets)

    def send(self, ticket: Ticket) -> bool:
        """Begin a request; False if its pool could never hold it, and nothing began."""
        assert self.engine is not None, f"{self.uid} is not ready"
        now = self.env.now
        request = ticket.request
        sequence = Sequence(ticket.number, request.prompt, request.output, ticket.digests, now)
        if not self.engine.can_ever_hold(sequence):
            return False
        self.sync()
        ticket.pod, ticket.sent_at = self.ordinal, now
        self._tickets[ticket.number] = ticket
        self.engine.submit(sequence, now)
        self._set_alarm()
        return True

    def sync(self) -> None:
        """Bring the engine to the present, and tell the owner what ended."""
        if self.engine is None or self.gone:
            return
        ended = self.engine.advance(self.env.now)
        if self.engine.started:
            started, self.engine.started = self.engine.started, []
            for sequence in started:
                self._owner.answered(self._tickets[sequence.order])
        for sequence in ended:
            ticket = self._tickets.pop(sequence.order)
            ticket.first_token_at, ticket.cached_tokens = sequence.first_token_at, sequence.cached_tokens
            assert sequence.finished_at is not None
            ticket.end("done", sequence.finished_at)
            self._owner.ended(ticket, self)
        if self.state is PodState.TERMINATING and not self._tickets:
            self._vanish()

    def _set_alarm(self) -> None:
        assert self.engine is not None
        self._alarm += 1
        end = self.engine.next_time()
        if end == math.inf or self.gone:
            return
        number = self._alarm
        event = self.env.timeout(max(0.0, end - self.env.now))
        assert event.callbacks is not None
        event.callbacks.append(lambda _: self._ring(number))

    def _ring(self, number: int) -> None:
        # An alarm that was set anew means nothing any more.
        if number == self._alarm and not self.gone:
            self.sync()
            self._set_alarm()

    # --- What others see -------------------------------------------------------------------------------------------
    def observed(self) -> Pod:
        """Return the pod as the API server shows it."""
        ready = self.state is PodState.READY
        return Pod(
            uid=self.uid,
            name=self.uid,
            state=self.state,
            created_at=self.created_at,
            ip="10.0.0.1" if self.scheduled_at is not None else None,
            scheduled=self.scheduled_at is not None,
            ready_at=self.ready_at if ready else None,
            not_ready_since=None if ready else self.created_at,
            cordoned=self.cordoned_at is not None,
            cordoned_at=self.cordoned_at,
        )

    def metrics(self) -> PodMetrics | None:
        """Return what its `/metrics` says now, None before it answers."""
        engine = self.engine
        if engine is None or self.gone:
            return None
        self.sync()
        pool, tally, oldest = engine.pool, engine.tally, engine.oldest_arrival
        return PodMetrics(
            at=self.env.now,
            running=engine.running,
            waiting=engine.waiting,
            kv=KVBlocks(pool.num_active, pool.num_cached, pool.num_unnamed),
            queue_tokens=engine.waiting_tokens,
            oldest_wait_seconds=0.0 if oldest is None else self.env.now - oldest,
            prompt_tokens_total=tally.prompt_tokens,
            generated_tokens_total=tally.generated,
            requests_total=tally.ended,
            ttft=tally.ttft(),
            itl=tally.itl(),
        )
