"""What becomes of a sequence: submitted, admitted, advanced, preempted, ended, released. Both schedulers share it.

Steps are planned ahead: up to `max_plans_in_flight` plans may be out before the first is committed. Progress advances
when a step is planned, with placeholders for the tokens it will sample; `commit` puts the tokens in and takes back what
did not come true. Blocks are published at commit, full and computed. A freed block may be taken by the next plan while
an earlier one that writes it is still in flight, because plans run in order.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter

from octavo_engine.core.config import (
    BlockReason,
    CoreSnapshot,
    Event,
    FinishReason,
    Refusal,
    Request,
    SchedulerConfig,
)
from octavo_engine.core.contiguous import ContiguousAllocator
from octavo_engine.core.digest import CacheIdentity, root_digest
from octavo_engine.core.hold_back import HoldBack
from octavo_engine.core.kv import Allocator, Hit, shareable_blocks
from octavo_engine.core.limits import check_start, refuse
from octavo_engine.core.paged import PagedAllocator
from octavo_engine.core.sequence import Sequence, State
from octavo_engine.core.step import Admission, BlockAppend, BlockCopy, Row, RowResult, StepPlan, StepResult
from octavo_engine.core.stop import Stop, check_stop
from octavo_engine.core.waiting import WaitingQueue

_key = attrgetter("key")


Planned = tuple[Sequence, int]
"""A row of a plan in flight: its sequence, and the sequence's epoch when it was planned."""


@dataclass(slots=True)
class StepBuilder:
    """A plan in the making."""

    budget: int
    admitted: list[Admission] = field(default_factory=list)
    appended: list[BlockAppend] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)


@dataclass(slots=True)
class Totals:
    """Counters since the start."""

    prefix_hit_tokens: int = 0
    prefix_miss_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    static_batches: int = 0
    reserved_slots: int = 0


class Lifecycle(ABC):
    """Everything about sequences but the choice of rows, which is `Scheduler`'s and `StaticScheduler`'s."""

    def __init__(self, config: SchedulerConfig) -> None:
        check_start(config)
        self.config = config
        self.kv: Allocator
        if config.kv_allocation == "contiguous":
            self.kv = ContiguousAllocator(config)
        else:
            self.kv = PagedAllocator(config)
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        """Ordered by (priority, arrival), so that the last one is the preemption victim."""
        self.hold_back = HoldBack()
        self.totals = Totals()
        self._sequences: dict[int, Sequence] = {}
        self._free_slots = list(range(config.max_num_seqs))
        self._released_slots: list[int] = []
        self._in_flight: deque[tuple[int, list[Planned]]] = deque()
        self._next_number = 0
        self._has_windows = any(group.window for group in config.groups)

    # --- What the loop calls ------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Refusal | None:
        """Queue one sequence per choice, or say why not. Raises ValueError for a request that means nothing."""
        refusal = refuse(request, self.waiting, self.config)
        if refusal is not None:
            return refusal
        for identity in request.sequences:
            if identity in self._sequences:
                raise ValueError(f"sequence {identity} exists already")
        root = self._root(request)
        digests: list[bytes] = []
        for choice, identity in enumerate(request.sequences):
            sequence = Sequence(
                id=identity,
                key=(request.priority, request.arrival, identity),
                tokens=list(request.prompt),
                num_prompt_tokens=len(request.prompt),
                stop=request.stop,
                max_len=min(len(request.prompt) + request.stop.max_tokens, self.config.max_model_len),
                adapter=request.adapter,
                stop_ids=self._stop_ids(request),
                scores=request.needs_all_positions and choice == 0,
                pooled=request.pooled,
                root=root,
                digests=digests.copy(),
            )
            if self.config.prefix_sharing and not digests:
                block_size = self.config.block_size
                digests = sequence.name_blocks(shareable_blocks(sequence, block_size), block_size)
            self._sequences[identity] = sequence
            self._queue(sequence, request.blocked)
        return None

    def abort(self, sequence: int) -> Event | None:
        """End a sequence now, wherever it is. None if it is unknown or has ended: aborting twice is no error."""
        known = self._sequences.get(sequence)
        return None if known is None else self._finish(known, "abort")

    def give_up(self, sequence: int, detail: str) -> Event | None:
        """End a sequence with an error: what it waits for will not come. None if it has ended, which is no error."""
        known = self._sequences.get(sequence)
        return None if known is None else self._finish(known, "error", detail=detail)

    def preempt(self, sequence: int) -> bool:
        """Send a running sequence back to the queue, to be computed again; False if it does not run."""
        known = self._sequences.get(sequence)
        if known is None or known.state is not State.RUNNING:
            return False
        self._preempt(known)
        return True

    def unblock(self, sequence: int) -> bool:
        """What a submitted sequence was blocked for is there. False if it does not wait for it: it may have ended."""
        known = self._sequences.get(sequence)
        if known is None or self.waiting.reason(known) not in (BlockReason.GRAMMAR, BlockReason.ADAPTER):
            return False
        self.waiting.unblock(known)
        return True

    def schedule(self) -> StepPlan | None:
        """Plan one step; None if nothing can be done before a commit, a submission or an `unblock`."""
        if len(self._in_flight) >= self.config.max_plans_in_flight:
            raise RuntimeError(f"{len(self._in_flight)} plans are in flight; commit one before planning another")
        step = StepBuilder(self.config.max_num_batched_tokens)
        self._fill(step)
        if not step.rows:
            return None
        plan = StepPlan(
            self._next_number,
            tuple(self._released_slots),
            tuple(step.admitted),
            tuple(step.appended),
            tuple(step.copies),
            tuple(step.rows),
            self.kv.take_transfers(),
        )
        self._released_slots.clear()
        self._in_flight.append((plan.number, step.planned))
        self._next_number += 1
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[Event]:
        """Take in the result of the oldest plan in flight."""
        if result.number != plan.number or len(result.rows) != len(plan.rows):
            raise ValueError(f"the result of step {result.number} does not answer step {plan.number}")
        events = []
        for planned, row, row_result in zip(self._land(plan), plan.rows, result.rows, strict=True):
            event = self._settle(planned, row, row_result)
            if event is not None:
                events.append(event)
        return events

    def fail(self, plan: StepPlan, message: str) -> list[Event]:
        """The oldest plan in flight raised: end every sequence it computed with an error, touch no other."""
        return [
            self._finish(sequence, "error", detail=message)
            for sequence, _ in self._land(plan)
            if sequence.state is not State.FINISHED
        ]

    @abstractmethod
    def measured(self, plan: StepPlan, seconds: float) -> None:
        """Learn how long a step took: what speculation weighs its drafts against."""

    def snapshot(self, now: float) -> CoreSnapshot:
        """Return the state in numbers, `now` on the clock of `Request.arrival`."""
        oldest = self.waiting.oldest_arrival()
        totals = self.totals
        return CoreSnapshot(
            blocks_active=sum(pool.num_active for pool in self.kv.pools),
            blocks_cached=sum(pool.num_cached for pool in self.kv.pools),
            blocks_free=sum(pool.num_free - pool.num_cached for pool in self.kv.pools),
            running=len(self.running),
            waiting=len(self.waiting),
            waiting_tokens=self.waiting.num_tokens,
            oldest_wait_seconds=0.0 if oldest is None else max(0.0, now - oldest),
            prefix_hit_tokens=totals.prefix_hit_tokens,
            prefix_miss_tokens=totals.prefix_miss_tokens,
            preemptions=totals.preemptions,
            recomputed_tokens=totals.recomputed_tokens,
            drafted_tokens=totals.drafted_tokens,
            accepted_tokens=totals.accepted_tokens,
            static_batches=totals.static_batches,
            reserved_slots=totals.reserved_slots,
            host_places=sum(tier.num_places for tier in self.kv.tiers),
            host_blocks=sum(tier.num_used for tier in self.kv.tiers),
            host_saved_blocks=sum(tier.saved_blocks for tier in self.kv.tiers),
            host_loaded_blocks=sum(tier.loaded_blocks for tier in self.kv.tiers),
        )

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished or any plan in flight."""
        return bool(self._sequences or self._in_flight)

    def assert_idle(self) -> None:
        """Raise AssertionError unless nothing runs, waits or is held."""
        assert not self._sequences, f"sequences left: {sorted(self._sequences)}"
        assert not self._in_flight, "a plan was never committed"
        assert not self.running, "the running list is not empty"
        assert not len(self.waiting), "the waiting queue is not empty"
        assert not self.waiting.num_tokens, "the waiting queue counts tokens of nobody"
        assert not len(self.hold_back), "somebody is held back, or leads nobody"
        assert sorted(self._free_slots) == list(range(self.config.max_num_seqs)), "a slot is lost"
        for pool in self.kv.pools:
            pool.check()
            assert not pool.num_active, f"{pool.num_active} blocks are still held"
        for tier in self.kv.tiers:
            tier.check()

    # --- Choosing rows: the schedulers' part ----------------------------------------------------------------------

    @abstractmethod
    def _fill(self, step: StepBuilder) -> None:
        """Put rows into `step`."""

    def _end(self, sequence: Sequence) -> None:
        """`sequence` has finished: give back what it holds."""
        self.release(sequence)

    # --- The changes of state ---------------------------------------------------------------------------------------

    def _admit(self, step: StepBuilder, sequence: Sequence, hit: Hit, num_tokens: int) -> None:
        """Move a waiting sequence into a slot, with blocks for its first `num_tokens`."""
        self._dequeue(sequence)
        step.copies += self.kv.admit(sequence, hit, num_tokens)
        sequence.state = State.RUNNING
        sequence.slot = heapq.heappop(self._free_slots)
        sequence.num_computed = hit.num_tokens
        self._measure(sequence)
        insort(self.running, sequence, key=_key)
        blocks = tuple(tuple(table) for table in sequence.tables)
        step.admitted.append(
            Admission(sequence.slot, sequence.id, tuple(sequence.tokens), sequence.num_prompt_tokens, blocks)
        )
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = hit.num_tokens
            self.totals.prefix_hit_tokens += hit.num_tokens
            self.totals.prefix_miss_tokens += sequence.num_prompt_tokens - hit.num_tokens
        if self.config.kv_allocation == "contiguous":
            self.totals.reserved_slots += sum(len(table) for table in sequence.tables) * self.config.block_size

    def _queue(self, sequence: Sequence, blocked: BlockReason | None) -> None:
        self.waiting.add(sequence, blocked)
        self.kv.expect(sequence)

    def _dequeue(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self.kv.expect_no_more(sequence)

    def _append(self, step: StepBuilder, sequence: Sequence, row: Row) -> None:
        """Add a row: progress advances now."""
        if sequence.pooled and not row.discard:
            row = row._replace(samples=False, pooled=True)
        elif sequence.scores and not row.discard:
            row = row._replace(scored=_scored(sequence, row))
        step.rows.append(row)
        step.planned.append((sequence, sequence.epoch))
        step.budget -= row.num_tokens + row.padding
        if row.discard:
            return
        end = row.start + row.num_tokens
        if row.start < sequence.recompute_until:
            self.totals.recomputed_tokens += min(end, sequence.recompute_until) - row.start
        sequence.num_computed = end
        sequence.num_placeholders += row.samples

    def _grow(self, step: StepBuilder, sequence: Sequence, num_tokens: int) -> None:
        """Extend the block tables of a running sequence."""
        step.appended += [BlockAppend(sequence.slot, *growth) for growth in self.kv.grow(sequence, num_tokens)]
        self._measure(sequence)

    def _measure(self, sequence: Sequence) -> None:
        sequence.capacity = min(map(len, sequence.tables)) * self.config.block_size

    def _preempt(self, victim: Sequence) -> None:
        """Send a running sequence back to the queue, to be computed again; published blocks stay findable.

        A token that a step in flight owes it is neither lost nor sampled again: it waits for that step's commit.
        """
        victim.recompute_until = max(victim.recompute_until, min(victim.num_computed, len(victim.tokens)))
        self.release(victim)
        victim.epoch += 1
        victim.num_computed = victim.num_published = 0
        victim.state = State.WAITING
        self._queue(victim, BlockReason.IN_FLIGHT if victim.num_placeholders else None)
        self.totals.preemptions += 1

    def _finish(self, sequence: Sequence, reason: FinishReason, detail: str = "", stop_reason: int = -1) -> Event:
        """End a sequence; its steps in flight are void from now on."""
        started = sequence.cached_tokens >= 0 and not sequence.started
        sequence.started = sequence.started or started
        sequence.state = State.FINISHED
        sequence.failed = reason == "error"
        self._end(sequence)
        del self._sequences[sequence.id]
        cached = sequence.cached_tokens if started else 0
        return Event(sequence.id, (), reason, detail, stop_reason, started, cached)

    def release(self, sequence: Sequence) -> None:
        """Give back all that a sequence holds: its place, its slot, its blocks, its part in a hold-back. Idempotent."""
        if sequence in self.waiting:
            self._dequeue(sequence)
        place = bisect_left(self.running, sequence.key, key=_key)
        if place < len(self.running) and self.running[place] is sequence:
            del self.running[place]
        if sequence.slot >= 0:
            self._released_slots.append(sequence.slot)
            heapq.heappush(self._free_slots, sequence.slot)
            sequence.slot = -1
        self.kv.release(sequence)
        self._let_go(self.hold_back.withdraw(sequence))

    def _stop_ids(self, request: Request) -> frozenset[int]:
        """Return the tokens that need `check_stop`: all others end nothing, below the sequence's limit."""
        eos = () if request.stop.ignore_eos else self.config.eos_token_ids
        return frozenset((*eos, *request.stop.stop_token_ids))

    def _root(self, request: Request) -> bytes:
        config = self.config
        return root_digest(
            CacheIdentity(
                config.layout_version,
                config.model_digest,
                config.quantization,
                config.kv_dtype,
                request.adapter_digest,
                request.salt,
            )
        )

    # --- Results ----------------------------------------------------------------------------------------------------

    def _land(self, plan: StepPlan) -> list[Planned]:
        if not self._in_flight or self._in_flight[0][0] != plan.number:
            raise ValueError(f"step {plan.number} is not the oldest plan in flight")
        return self._in_flight.popleft()[1]

    def _settle(self, planned: Planned, row: Row, result: RowResult) -> Event | None:
        """Take in one row's result; None if there is nothing to tell."""
        sequence, epoch = planned
        if sequence.state is State.FINISHED or row.discard:
            return None
        if row.samples:
            sequence.num_placeholders -= 1
        if row.drafts:
            self.totals.drafted_tokens += len(row.drafts)
            self.totals.accepted_tokens += max(0, len(result.tokens) - 1)
        if result.failed:
            return self._finish(sequence, "error", detail=result.failed)
        if row.pooled:
            return self._settle_pooled(planned, row, result.pooled)
        if row.samples and not result.tokens:
            raise ValueError(f"sequence {sequence.id} sampled nothing in a row that samples")
        tokens, stop = self._accept(sequence, result.tokens)
        if result.complete and len(tokens) == len(result.tokens) and (stop is None or stop.reason == "length"):
            stop = Stop("stop")
        logprobs = result.logprobs
        if logprobs and len(tokens) < len(result.tokens):
            logprobs = logprobs[: len(logprobs) // len(result.tokens) * len(tokens)]
        if epoch == sequence.epoch:
            self._confirm(sequence, row, len(result.tokens))
        elif sequence.state is State.WAITING and not sequence.num_placeholders:
            self.waiting.unblock(sequence)
        if stop is not None:
            event = self._finish(sequence, stop.reason, stop_reason=stop.token)
            return event._replace(tokens=tokens, prompt_logprobs=result.prompt_logprobs, logprobs=logprobs)
        if sequence.started:
            if not tokens and not result.prompt_logprobs:
                return None
            return Event(sequence.id, tokens, prompt_logprobs=result.prompt_logprobs, logprobs=logprobs)
        sequence.started = True
        return Event(
            sequence.id,
            tokens,
            started=True,
            cached_tokens=sequence.cached_tokens,
            prompt_logprobs=result.prompt_logprobs,
            logprobs=logprobs,
        )

    def _settle_pooled(self, planned: Planned, row: Row, embedding: bytes) -> Event | None:
        """Take in one row of a pooled sequence. An embedding ends it, even if it was preempted meanwhile."""
        sequence, epoch = planned
        if epoch == sequence.epoch:
            self._confirm(sequence, row, 0)
        if embedding:
            return self._finish(sequence, "stop")._replace(pooled=embedding)
        if row.start + row.num_tokens == sequence.num_prompt_tokens:
            raise ValueError(f"sequence {sequence.id} gave no embedding at the end of its prompt")
        if sequence.started:
            return None
        sequence.started = True
        return Event(sequence.id, started=True, cached_tokens=sequence.cached_tokens)

    def _accept(self, sequence: Sequence, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], Stop | None]:
        """Append sampled tokens until one of them ends the sequence; what comes after it never happened."""
        known = sequence.tokens
        for count, token in enumerate(tokens, start=1):
            known.append(token)
            if len(known) < sequence.max_len and token not in sequence.stop_ids:
                continue
            stop = check_stop(
                sequence.stop,
                self.config.eos_token_ids,
                token,
                sequence.num_generated,
                len(known),
                self.config.max_model_len,
            )
            if stop is not None:
                return tokens[:count], stop
        return tokens, None

    def _confirm(self, sequence: Sequence, row: Row, num_sampled: int) -> None:
        """A row of this epoch was computed: take back rejected drafts, publish, free behind the windows."""
        rejected = len(row.drafts) + 1 - num_sampled if row.drafts else 0
        sequence.num_computed -= rejected
        computed = min(row.start + row.num_tokens - rejected, len(sequence.tokens))
        if computed >= (sequence.num_published + 1) * self.config.block_size:
            self._let_go(self.hold_back.published(self.kv.publish(sequence, computed)))
        if self._has_windows:
            self.kv.release(sequence, behind=computed)

    def _let_go(self, followers: list[Sequence]) -> None:
        """Followers of a prefix that was published, or lost its leader, may be admitted again."""
        for follower in followers:
            self.waiting.unblock(follower)


def _scored(sequence: Sequence, row: Row) -> tuple[int, ...]:
    """Return which prompt tokens `row` scores: those after its positions that no row has scored before."""
    first, last = sequence.num_scored, min(row.start + row.num_tokens + 1, sequence.num_prompt_tokens)
    if last <= first:
        return ()
    sequence.num_scored = last
    return first, last
