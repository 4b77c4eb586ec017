"""Continuous batching: a finished sequence leaves the batch at once and a waiting one takes its place.

There is no prefill and no decode phase: every step lets each sequence's `num_computed` catch up with its `num_tokens`,
under one token budget. Running sequences come first, then waiting ones; nothing is admitted in a step that preempted
or starved somebody.

The running list is ordered by (priority, arrival) and planned in that order, so the victim of a preemption, the last of
the list, never has a row in the step being planned, and the first of it is never preempted. The last one is not
preempted for its own sake either: it keeps its blocks and waits for a step, because whoever is before it may take them.

Each running sequence planned later keeps one token of the budget reserved, so that a long prompt chunk never makes
a decoding sequence miss a step.

Drafts are guessed from known tokens only. A sequence for which there are drafts is therefore not planned while a token
of its own is in flight: with two plans in flight it is computed in every other step, several tokens at a time.
"""

from __future__ import annotations

from octavo_engine.core.config import BlockReason, SchedulerConfig
from octavo_engine.core.kv import Hit, shareable_blocks
from octavo_engine.core.lifecycle import Lifecycle, StepBuilder
from octavo_engine.core.sequence import Sequence
from octavo_engine.core.speculation import DraftSource
from octavo_engine.core.static import StaticScheduler
from octavo_engine.core.step import Row, StepPlan


class Scheduler(Lifecycle):
    """Plans steps and takes in their results; see `Lifecycle` for everything but the choice of rows."""

    def __init__(self, config: SchedulerConfig, drafts: DraftSource | None = None) -> None:
        """Raise CapacityError if the cache cannot hold one longest sequence, ValueError for other bad sizes."""
        super().__init__(config)
        self._source = drafts
        self._watermark = tuple(int(config.watermark * group.num_blocks) for group in config.groups)
        self._no_headroom = (0,) * len(config.groups)

    def _fill(self, step: StepBuilder) -> None:
        if self._plan_running(step):
            self._plan_waiting(step)

    def _plan_running(self, step: StepBuilder) -> bool:
        """Give every running sequence its tokens; False if somebody was preempted or left without blocks."""
        everybody_served = True
        source = self._source if self._source and self._source.worthwhile(len(self.running)) else None
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            index += 1
            later = len(self.running) - index
            count = min(sequence.num_remaining, step.budget - later)
            if count <= 0:
                continue
            drafts = self._drafts(source, step, sequence, later) if source else ()
            if drafts and sequence.num_placeholders:
                continue
            end = sequence.num_computed + count
            if end > sequence.capacity and not self.kv.can_grow(sequence, end):
                everybody_served = False
                if not self._make_room(sequence, end):
                    break
            if drafts and not self.kv.can_grow(sequence, end + len(drafts)):
                drafts = ()
            if end + len(drafts) > sequence.capacity:
                self._grow(step, sequence, end + len(drafts))
            self._append_row(step, sequence, count, drafts)
        return everybody_served

    def _make_room(self, sequence: Sequence, end: int) -> bool:
        """Preempt from the back until `sequence` can grow to `end`; False if it is the last one itself."""
        while not self.kv.can_grow(sequence, end):
            if self.running[-1] is sequence:
                return False
            self._preempt(self.running[-1])
        return True

    def _plan_waiting(self, step: StepBuilder) -> None:
        """Admit in order while there is budget, a slot and room; the first that does not fit ends it."""
        # The bound keeps a step short when a great many wait behind one leader: the rest is looked at in the next step.
        looks = 2 * self.config.max_num_seqs
        while looks and step.budget > 0 and self._free_slots and (sequence := self.waiting.first()):
            looks -= 1
            hit = self.kv.find_hit(sequence)
            awaited = self._awaited(sequence, hit)
            if awaited is not None:
                self.waiting.block(sequence, BlockReason.PREFIX)
                self.hold_back.follow(sequence, awaited)
                continue
            headroom = self._watermark if self.running else self._no_headroom
            if not self.kv.can_admit(sequence, hit, len(sequence.tokens), headroom):
                break
            count = min(len(sequence.tokens) - hit.num_tokens, step.budget)
            self._admit(step, sequence, hit, hit.num_tokens + count)
            self._append_row(step, sequence, count)
            if self.config.prefix_sharing:
                self.hold_back.lead(sequence, self._shareable(sequence)[hit.num_tokens // self.config.block_size :])

    def _awaited(self, sequence: Sequence, hit: Hit) -> bytes | None:
        """Return the digest a running leader is about to publish that `sequence` had better wait for, if any."""
        if not self.config.prefix_sharing or not sequence.reads_cache:
            return None
        return self.hold_back.awaited(self._shareable(sequence), hit.num_tokens // self.config.block_size)

    def _shareable(self, sequence: Sequence) -> list[bytes]:
        count = shareable_blocks(sequence, self.config.block_size)
        return sequence.name_blocks(count, self.config.block_size)[:count]

    def _drafts(self, source: DraftSource, step: StepBuilder, sequence: Sequence, later: int) -> tuple[int, ...]:
        """Guess what follows, for a sequence that samples next; the caller sees to memory: drafts preempt nobody."""
        if sequence.num_remaining != 1 or not sequence.num_generated:
            return ()
        room = min(self.config.max_drafts, step.budget - 1 - later, sequence.max_len - sequence.num_tokens - 1)
        if room <= 0:
            return ()
        planned = self.config.max_num_batched_tokens - step.budget + 1 + later
        return tuple(source.propose(sequence.id, sequence.tokens, room, planned, len(self.running)))

    def measured(self, plan: StepPlan, seconds: float) -> None:
        """See `Lifecycle`. Steps that compute prompts too say nothing about what a draft costs."""
        if self._source is not None:
            tokens, drafted = plan.num_tokens, sum([len(row.drafts) for row in plan.rows])
            decodes = tokens == len(plan.rows) + drafted
            self._source.measured(tokens, drafted, seconds if decodes else 0.0)

    def _end(self, sequence: Sequence) -> None:
        super()._end(sequence)
        if self._source is not None:
            self._source.forget(sequence.id)

    def _append_row(self, step: StepBuilder, sequence: Sequence, count: int, drafts: tuple[int, ...] = ()) -> None:
        start = sequence.num_computed
        samples = start + count == sequence.num_tokens
        row = Row(sequence.slot, sequence.id, start, count + len(drafts), samples, drafts, sequence.adapter)
        self._append(step, sequence, row)


def create_scheduler(config: SchedulerConfig, drafts: DraftSource | None = None) -> Lifecycle:
    """Return the scheduler that `config.policy` names. Static batching has no use for drafts."""
    return StaticScheduler(config) if config.policy == "static" else Scheduler(config, drafts)
