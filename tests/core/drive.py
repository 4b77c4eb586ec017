"""Drive a scheduler without a model: the next token is a function of the tokens before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from octavo_engine.core.config import CacheGroup, Event, Refusal, Request, SchedulerConfig
from octavo_engine.core.lifecycle import Lifecycle
from octavo_engine.core.scheduler import create_scheduler
from octavo_engine.core.step import Row, RowResult, StepPlan, StepResult
from octavo_engine.core.stop import StopRule

EOS = 999


def next_token(tokens: Sequence[int]) -> int:
    """A token from 0 to 99 that depends on all tokens before it; never EOS."""
    return blake2b(repr(tuple(tokens)).encode()).digest()[0] % 100


def continuation(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """What a sequence with this prompt writes, if nothing goes wrong."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tuple(tokens[len(prompt) :])


def embedding(prompt: Sequence[int]) -> bytes:
    """What a pooled sequence with this prompt ends with."""
    return blake2b(repr(tuple(prompt)).encode()).digest()


class Guesses:
    """A draft source that guesses what a function of the known tokens says, whatever it costs."""

    def __init__(self, propose: Callable[[Sequence[int]], Sequence[int]]) -> None:
        self._propose = propose
        self.measurements: list[tuple[int, int, float]] = []
        self.forgotten: list[int] = []

    def worthwhile(self, running: int) -> bool:
        return True

    def propose(self, sequence: int, tokens: Sequence[int], room: int, planned: int, running: int) -> Sequence[int]:
        return self._propose(tokens)[:room]

    def measured(self, tokens: int, drafted: int, seconds: float) -> None:
        self.measurements.append((tokens, drafted, seconds))

    def forget(self, sequence: int) -> None:
        self.forgotten.append(sequence)


class Drive:
    """A scheduler, the runner's idea of its slots, and what was told so far."""

    def __init__(
        self,
        blocks: int = 64,
        *,
        window: int = 0,
        windows: Sequence[int] = (),
        propose: Callable[[Sequence[int]], Sequence[int]] | None = None,
        writes: Callable[[Sequence[int]], int] = next_token,
        **config: Any,
    ) -> None:
        values: dict[str, Any] = {
            "groups": tuple(CacheGroup(blocks, w) for w in (windows or (window,))),
            "max_model_len": 64,
            "block_size": 4,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "eos_token_ids": (EOS,),
            "watermark": 0.0,
        }
        self.scheduler: Lifecycle = create_scheduler(SchedulerConfig(**(values | config)), propose and Guesses(propose))
        self.writes = writes
        self.slots: dict[int, tuple[int, list[int]]] = {}
        self.pooled: dict[int, int] = {}
        """How many tokens have been pooled in a slot."""
        self.plans: list[StepPlan] = []
        self.in_flight: deque[tuple[StepPlan, StepResult]] = deque()
        self.events: list[Event] = []
        self.computed = 0
        self._next = 0

    def submit(
        self, prompt: Sequence[int], max_tokens: int = 4, *, n: int = 1, stop: StopRule | None = None, **request: Any
    ) -> int:
        """Submit and return the first choice's sequence id (ids count up from 0, so do arrivals)."""
        answer = self.try_submit(prompt, max_tokens, n=n, stop=stop, **request)
        assert isinstance(answer, int), answer
        return answer

    def try_submit(
        self, prompt: Sequence[int], max_tokens: int = 4, *, n: int = 1, stop: StopRule | None = None, **request: Any
    ) -> int | Refusal:
        """Submit; return the first choice's sequence id, or the refusal."""
        first, self._next = self._next, self._next + n
        values: dict[str, Any] = {"arrival": float(first), **request}
        refusal = self.scheduler.submit(
            Request(tuple(range(first, first + n)), tuple(prompt), stop or StopRule(max_tokens), **values)
        )
        return first if refusal is None else refusal

    def plan(self) -> StepPlan | None:
        """Plan and compute a step, without committing it."""
        plan = self.scheduler.schedule()
        if plan is not None:
            self.plans.append(plan)
            self.in_flight.append((plan, self.compute(plan)))
        return plan

    def commit(self) -> list[Event]:
        """Commit the oldest plan in flight."""
        plan, result = self.in_flight.popleft()
        events = self.scheduler.commit(plan, result)
        self.events += events
        return events

    def fail(self, message: str = "it raised") -> list[Event]:
        """The oldest plan in flight raised."""
        plan, _ = self.in_flight.popleft()
        events = self.scheduler.fail(plan, message)
        self.events += events
        return events

    def step(self) -> StepPlan:
        """Plan, compute, commit."""
        plan = self.plan()
        assert plan is not None, "nothing to do"
        self.commit()
        return plan

    def finish(self, depth: int = 1, limit: int = 1000) -> None:
        """Step until everything has ended; the scheduler must be idle then."""
        while self.scheduler.has_work:
            limit -= 1
            assert limit > 0, "no end in sight"
            if len(self.in_flight) < depth and self.plan() is not None:
                continue
            self.commit()
        self.scheduler.assert_idle()

    def compute(self, plan: StepPlan) -> StepResult:
        """What a runner would answer."""
        for slot in plan.released:
            del self.slots[slot]
            self.pooled.pop(slot, None)
        for admission in plan.admitted:
            assert admission.slot not in self.slots
            self.slots[admission.slot] = (admission.sequence, list(admission.tokens))
        self.computed += plan.num_tokens
        return StepResult(plan.number, tuple(self._row(row) for row in plan.rows))

    def _row(self, row: Row) -> RowResult:
        sequence, tokens = self.slots[row.slot]
        assert sequence == row.sequence
        if row.pooled:
            assert not row.samples
            assert row.start == self.pooled.get(row.slot, 0), "every position is pooled, once"
            self.pooled[row.slot] = row.start + row.num_tokens
            return RowResult(pooled=embedding(tokens)) if self.pooled[row.slot] == len(tokens) else RowResult()
        if not row.samples or row.discard:
            return RowResult()
        assert row.start + row.num_tokens - len(row.drafts) == len(tokens), "a sampling row ends where the tokens end"
        before = len(tokens)
        for draft in row.drafts:
            tokens.append(self.writes(tokens))
            if tokens[-1] != draft:
                return RowResult(tuple(tokens[before:]))
        tokens.append(self.writes(tokens))
        return RowResult(tuple(tokens[before:]))

    def text(self, sequence: int) -> tuple[int, ...]:
        """What `sequence` has been told to have written."""
        return tuple(token for event in self.events if event.sequence == sequence for token in event.tokens)

    def end(self, sequence: int) -> Event:
        """The event that ended `sequence`."""
        (event,) = [event for event in self.events if event.sequence == sequence and event.finish]
        return event

    def running(self) -> list[int]:
        """Ids in the running list, in its order."""
        return [sequence.id for sequence in self.scheduler.running]

    def rows(self) -> dict[int, int]:
        """The last plan's tokens per sequence."""
        return {row.sequence: row.num_tokens for row in self.plans[-1].rows}
