"""The runner: applies a plan's differences to the persistent batch, computes its rows, samples, accepts drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from octavo_engine.core.step import Row, RowResult, StepPlan, StepResult
from octavo_engine.model.pooling import Kind
from octavo_engine.sampling.logprobs import sampled_records, token_records
from octavo_engine.sampling.sampler import NOT_FINITE, RowSampling, sample
from octavo_engine.sampling.settings import SamplingSettings
from octavo_engine.worker.assemble import assemble, assemble_decode
from octavo_engine.worker.batch import PersistentBatch
from octavo_engine.worker.executable import Executable, ModelStep
from octavo_engine.worker.failures import ContractError, StepError
from octavo_engine.worker.grammar import Grammar, GrammarMasks, follow
from octavo_engine.worker.host_store import HostStore
from octavo_engine.worker.pooling import PromptPooling

SCORED_AT_ONCE: Final = 64
"""Positions of a prompt whose logits exist at the same time."""


class Runner:
    """Executes plans in order, over one executable.

    `register` gives a sequence's sampling settings, and its grammar, before the plan that admits it; `forget` drops
    them when it has ended. Whatever breaks the plan's contract raises RuntimeError: the batch can no longer be trusted.
    A step whose computation raises ends in `StepError`: its sequences must be failed, the others go on.

    A row planned on placeholders that did not come true is void: it is not computed and its result is empty. That is
    a sampling row that does not start where the known tokens end (drafts before it were rejected, or its sequence
    failed), or any row that reads tokens nobody sampled, or one behind the end of its sequence's grammar, or behind a
    step that raised.
    """

    def __init__(
        self,
        executable: Executable,
        *,
        max_num_seqs: int,
        max_model_len: int,
        threads: int = 1,
        pooling: Kind = "mean",
        host: HostStore | None = None,
    ) -> None:
        """Make an empty batch of `max_num_seqs` slots. The executable's cache must be allocated.

        `threads`: how many work out what grammars allow. `pooling`: how embeddings are made. `host`: where evicted
        blocks are kept.
        """
        self.executable = executable
        self._host = host
        self._pooling = pooling
        # A backend with native threads lends them to the sampler.
        self._pool = getattr(executable, "pool", None)
        self.batch = PersistentBatch(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            block_size=executable.layout.block_size,
            num_groups=len(executable.layout.groups),
            vocab_size=executable.vocab_size,
        )
        self._settings: dict[int, SamplingSettings] = {}
        self._grammars: dict[int, Grammar] = {}
        self._failed: set[int] = set()
        """Sequences of steps that raised: what is in flight of them is void."""
        self._masks = GrammarMasks(executable.vocab_size, threads)

    def register(self, sequence: int, settings: SamplingSettings, grammar: Grammar | None = None) -> None:
        """Keep the settings of a sequence that may be admitted from now on, and the grammar it follows."""
        self._settings[sequence] = settings
        if grammar is not None:
            self._grammars[sequence] = grammar

    def forget(self, sequence: int) -> None:
        """Drop what was registered of a sequence. A slot it still holds keeps its own until released."""
        self._settings.pop(sequence, None)
        self._grammars.pop(sequence, None)
        self._failed.discard(sequence)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one plan. Raises StepError if computing it fails."""
        self._apply(plan)
        try:
            results = self._decode(plan.rows) or self._compute_live(plan.rows)
        except ContractError:
            raise
        except Exception as error:
            self._failed.update(row.sequence for row in plan.rows)
            raise StepError(plan, error) from error
        return StepResult(plan.number, results)

    def _decode(self, rows: Sequence[Row]) -> tuple[RowResult, ...] | None:
        """Compute a step in which every row samples after one known token and nothing else; None if it is another."""
        if not rows:
            return None
        slots, sequences, starts, counts, samples, drafts, adapters, paddings, discards, scored, _ = zip(
            *rows, strict=True
        )
        if max(counts) > 1 or not all(samples) or any(drafts) or any(paddings) or any(discards) or any(scored):
            return None
        at, positions = np.array(slots), np.array(starts)
        if not self.batch.holds(at, sequences, positions + 1):
            return None
        grammars = [self.batch.grammars[slot] for slot in slots]
        if any(grammar is not None and grammar.complete for grammar in grammars):
            return None
        step = assemble_decode(self.batch, at, positions, adapters, self.executable.max_position)
        plan, x = self._forward(step)
        settings, prompts, used = self.batch.settings, self.batch.num_prompt_tokens, self.batch.counts
        asked = [
            RowSampling(settings[slot], start + 1, prompts[slot], (), used[slot])
            for slot, start in zip(slots, starts, strict=True)
        ]
        results = self._draw(self.executable.logits(plan, x), asked, grammars)
        if any(result.failed for result in results):
            self._append(rows, results)
        else:
            self.batch.append_one_each(at, [result.tokens[0] for result in results])
        return tuple(results)

    def _compute_live(self, rows: Sequence[Row]) -> tuple[RowResult, ...]:
        """Compute the rows that are not void."""
        live = [index for index, row in enumerate(rows) if not self._void(row)]
        results = [RowResult()] * len(rows)
        for index, result in zip(live, self._compute([rows[i] for i in live]), strict=True):
            results[index] = result
        self._append(rows, results)
        return tuple(results)

    def _append(self, rows: Sequence[Row], results: Sequence[RowResult]) -> None:
        for row, result in zip(rows, results, strict=True):
            self.batch.append_tokens(row.slot, result.tokens)

    def probe(self) -> None:
        """Compute one token of nobody's, written nowhere. Raises whatever the backend raises: it is broken then."""
        groups = range(len(self.batch.tables))
        one = np.zeros(1, dtype=np.int32)
        plan, x = self._forward(
            ModelStep(
                tokens=one,
                positions=one,
                row_offsets=np.array([0, 1], dtype=np.int32),
                context_lengths=one + 1,
                block_tables=tuple(np.zeros((1, 1), dtype=np.int32) for _ in groups),
                slots=tuple(np.full(1, -1, dtype=np.int64) for _ in groups),
                logit_tokens=one,
                adapters=one - 1,
            )
        )
        self.executable.logits(plan, x)

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.released:
            self.batch.release(slot)
        for admission in plan.admitted:
            settings = self._settings.get(admission.sequence)
            if settings is None:
                raise RuntimeError(f"Sequence {admission.sequence} was admitted before it was registered.")
            self.batch.admit(admission, settings, self._grammars.get(admission.sequence))
        for append in plan.appended:
            self.batch.append_blocks(append)
        if plan.transfers:
            if self._host is None:
                raise ContractError("A plan moves blocks to host memory, and there is none for them.")
            self._host.move(plan.transfers)
        for group in {copy.group for copy in plan.copies}:
            pairs = [(copy.source, copy.target) for copy in plan.copies if copy.group == group]
            self.executable.layout.copy_blocks(group, pairs)

    def _void(self, row: Row) -> bool:
        if self.batch.sequences[row.slot] != row.sequence:
            raise ContractError(f"Slot {row.slot} does not hold sequence {row.sequence}.")
        if row.sequence in self._failed:
            return True
        end, length = row.start + row.num_tokens - len(row.drafts), int(self.batch.lengths[row.slot])
        grammar = self._grammar(row)
        if grammar is not None and grammar.complete:
            return True
        return end != length if row.samples and not row.discard else end > length

    def _compute(self, rows: Sequence[Row]) -> list[RowResult]:
        if not rows:
            return []
        step = assemble(self.batch, rows, self.executable.max_position)
        plan, x = self._forward(step)
        num_sampled = sum(1 + len(row.drafts) for row in rows if row.samples)
        sampled = iter(self._sample(plan, x, [row for row in rows if row.samples], num_sampled))
        scored = self._score(plan, x, rows, num_sampled) if num_sampled < step.logit_tokens.size else {}
        results = []
        for index, row in enumerate(rows):
            if row.pooled:
                results.append(self._pool_row(plan, x, row, int(step.row_offsets[index])))
                continue
            result = next(sampled) if row.samples else RowResult()
            scores, unscored = scored.get(index, (b"", ""))
            failed = result.failed or unscored
            if failed or row.discard:
                results.append(RowResult((), failed))
            else:
                results.append(result._replace(prompt_logprobs=scores) if scores else result)
        return results

    def _sample(self, plan: Any, x: Any, rows: Sequence[Row], num_logits: int) -> list[RowResult]:
        if not rows:
            return []
        asked, grammars = [self._sampling(row) for row in rows], [self._grammar(row) for row in rows]
        return self._draw(self.executable.logits(plan, x, slice(num_logits)), asked, grammars)

    def _draw(
        self, logits: NDArray[np.float32], asked: Sequence[RowSampling], grammars: Sequence[Grammar | None]
    ) -> list[RowResult]:
        """Sample rows of logits, each within its grammar, and tell of the tokens what was asked for."""
        masks, constrained = None, any(grammars)
        if constrained:
            asked, masks = self._masks.fill(asked, grammars)
        sampled = sample(logits, asked, self._pool, masks)
        records = sampled_records(logits, asked, sampled, self._pool)
        results = [RowResult(tokens, failed, of) for (tokens, failed), of in zip(sampled, records, strict=True)]
        return follow(grammars, results) if constrained else results

    def _score(self, plan: Any, x: Any, rows: Sequence[Row], first: int) -> dict[int, tuple[bytes, str]]:
        """Return, by index, the records of the prompt tokens that rows ask for, or why a row failed."""
        results = {}
        for index, row in enumerate(rows):
            if row.scored:
                results[index] = self._score_row(plan, x, row, first)
                first += row.scored[1] - row.scored[0]
        return results

    def _score_row(self, plan: Any, x: Any, row: Row, first: int) -> tuple[bytes, str]:
        settings = self.batch.settings[row.slot]
        alternatives = 0 if settings is None else max(0, settings.prompt_logprobs)
        tokens = self.batch.tokens[row.slot, slice(*row.scored)]
        pieces = []
        for start in range(0, tokens.size, SCORED_AT_ONCE):
            part = tokens[start : start + SCORED_AT_ONCE]
            logits = self.executable.logits(plan, x, slice(first + start, first + start + part.size))
            records = token_records(logits, part, alternatives, self._pool)
            if not np.isfinite(records["logprob"]).all():
                return b"", NOT_FINITE
            pieces.append(records.tobytes())
        return b"".join(pieces), ""

    def _pool_row(self, plan: Any, x: Any, row: Row, first: int) -> RowResult:
        """Pool a row's hidden states, x from `first` on; the row that ends its prompt gives the embedding."""
        pooled = self.batch.pooled[row.slot]
        if pooled is None:
            pooled = self.batch.pooled[row.slot] = PromptPooling(self._pooling)
        if pooled.num_tokens != row.start:
            raise ContractError(f"Sequence {row.sequence} is pooled from token {row.start}, not {pooled.num_tokens}.")
        pooled.add(self.executable.last_hidden(plan, x, slice(first, first + row.num_tokens)))
        if pooled.num_tokens < self.batch.num_prompt_tokens[row.slot]:
            return RowResult()
        vector = pooled.vector()
        return RowResult(pooled=vector.tobytes()) if np.isfinite(vector).all() else RowResult((), NOT_FINITE)

    def _forward(self, step: ModelStep) -> tuple[Any, Any]:
        """Return the step as the executable planned it, and x after the last layer."""
        model = self.executable
        plan = model.plan(step)
        return plan, model.forward(plan, model.embed(plan))

    def _grammar(self, row: Row) -> Grammar | None:
        """Return the grammar of a row that samples; what is discarded may be anything."""
        return self.batch.grammars[row.slot] if row.samples and not row.discard else None

    def _sampling(self, row: Row) -> RowSampling:
        settings = self.batch.settings[row.slot]
        if settings is None:
            raise RuntimeError(f"Slot {row.slot} has no sampling settings.")
        return RowSampling(
            settings=settings,
            position=row.start + row.num_tokens - len(row.drafts),
            num_prompt_tokens=self.batch.num_prompt_tokens[row.slot],
            drafts=row.drafts,
            counts=None if row.discard else self.batch.counts[row.slot],
        )
