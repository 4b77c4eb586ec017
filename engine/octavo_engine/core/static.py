"""Static batching as practised by `transformers.generate`: the baseline continuous batching is measured against.

A batch of up to `max_num_seqs` waiting sequences is formed and nobody is admitted before all of it has finished.
Prompts are padded to the longest of the batch, all are prefilled before anybody decodes, every row is computed in every
step and holds its KV until the last row ends, and what a finished row computes is thrown away. Kinder than the
original in two ways: tokens and ends are told as they come, and padding takes no KV.

A batch is formed only as large as its sequences fit to their very ends, so nobody is ever preempted. A finished row
computes its last position again: the same work as going on, without growing.
"""

from __future__ import annotations

from octavo_engine.core.config import SchedulerConfig
from octavo_engine.core.kv import NO_BLOCK
from octavo_engine.core.lifecycle import Lifecycle, StepBuilder
from octavo_engine.core.limits import peak_blocks
from octavo_engine.core.sequence import Sequence
from octavo_engine.core.step import Row, StepPlan


class StaticScheduler(Lifecycle):
    """`Lifecycle` with whole batches. No drafts, no hold-back: a batch is computed as it was formed."""

    def __init__(self, config: SchedulerConfig) -> None:
        """Raise what `Scheduler` raises."""
        super().__init__(config)
        self._batch: list[Sequence] = []
        self._width = 0
        self._chunks_planned: dict[int, int] = {}

    def preempt(self, sequence: int) -> bool:
        """Nobody leaves a batch: always False."""
        return False

    def measured(self, plan: StepPlan, seconds: float) -> None:
        """Nothing here is weighed against a step's time."""

    def _fill(self, step: StepBuilder) -> None:
        if not self._batch:
            self._form(step)
        if not self._prefill(step):
            self._decode(step)

    def _form(self, step: StepBuilder) -> None:
        """Take waiting sequences in order while there is a slot and room for all of them to their ends."""
        headroom = [0] * len(self.config.groups)
        while len(self._batch) < self.config.max_num_seqs and (sequence := self.waiting.first()):
            hit = self.kv.find_hit(sequence)
            if not self.kv.can_admit(sequence, hit, sequence.max_len, headroom):
                break
            self._admit(step, sequence, hit, hit.num_tokens)
            self._batch.append(sequence)
            self._chunks_planned[sequence.id] = 0
            for index, (group, blocks) in enumerate(zip(self.config.groups, hit.blocks, strict=True)):
                held = len(blocks) - blocks.count(NO_BLOCK)
                headroom[index] += peak_blocks(group, sequence.max_len, self.config) - held
        self._width = max((len(sequence.tokens) - sequence.num_computed for sequence in self._batch), default=0)
        self.totals.static_batches += bool(self._batch)

    def _prefill(self, step: StepBuilder) -> bool:
        """Plan prompt chunks, padding included, within the budget; False once every prompt is planned."""
        pending = [sequence for sequence in self.running if sequence.num_computed < sequence.num_prompt_tokens]
        for sequence in pending:
            count, padding = self._chunk(sequence)
            if step.rows and count + padding > step.budget:
                break
            if self._compute(step, sequence, count, padding):
                self._chunks_planned[sequence.id] += 1
        return bool(pending)

    def _chunk(self, sequence: Sequence) -> tuple[int, int]:
        """Return the next chunk of a prompt: its tokens, and its share of what pads the prompt to the batch's width.

        A prompt with fewer tokens than the padded width has chunks goes over the budget rather than computes less.
        """
        tokens = sequence.num_prompt_tokens - sequence.cached_tokens
        chunks = min(tokens, -(-self._width // self.config.max_num_batched_tokens))
        index = self._chunks_planned[sequence.id]
        count = (index + 1) * tokens // chunks - index * tokens // chunks
        width = (index + 1) * self._width // chunks - index * self._width // chunks
        return count, max(0, width - count)

    def _decode(self, step: StepBuilder) -> None:
        """Plan one token of every row; those that have ended are computed too, as long as one has not."""
        for sequence in self.running:
            if sequence.num_remaining > 0:
                self._compute(step, sequence, sequence.num_remaining)
        if not step.rows:
            return
        live = {row.sequence for row in step.rows}
        for sequence in self._batch:
            if sequence.id not in live and sequence.num_computed and not sequence.failed:
                start = sequence.num_computed - 1
                row = Row(sequence.slot, sequence.id, start, 1, True, adapter=sequence.adapter, discard=True)
                self._append(step, sequence, row)

    def _compute(self, step: StepBuilder, sequence: Sequence, count: int, padding: int = 0) -> bool:
        """Append a row of `count` tokens; False if a window group frees its blocks only at the next commit."""
        end = sequence.num_computed + count
        if not self.kv.can_grow(sequence, end):
            return False
        self._grow(step, sequence, end)
        samples = end == sequence.num_tokens
        row = Row(
            sequence.slot, sequence.id, sequence.num_computed, count, samples, adapter=sequence.adapter, padding=padding
        )
        self._append(step, sequence, row)
        return True

    def _end(self, sequence: Sequence) -> None:
        """Keep slot and blocks until the whole batch has finished."""
        if sequence not in self._batch:
            self.release(sequence)
            return
        self.running.remove(sequence)
        if not self.running:
            batch, self._batch = self._batch, []
            self._chunks_planned.clear()
            for member in batch:
                self.release(member)
