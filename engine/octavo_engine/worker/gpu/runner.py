"""The GPU runner: plans in order, each queued on the device behind the ones before it; results when they are asked for.

    launch(plan)   differences -> rows -> forward -> logits -> masks, sampling -> tokens appended on the device
    result()       wait for the device, read what it sampled, tell log-probabilities and embeddings

So plan N + 1 is assembled and queued while N is computed: a row reads tokens that N samples where the device keeps
them. Only a step with rows under a grammar waits: what they may say depends on the tokens before, which the host must
know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from octavo_engine.core.step import Admission, Row, RowResult, StepPlan, StepResult
from octavo_engine.sampling.parameters import SamplingParameters
from octavo_engine.worker.failures import ContractError, StepError
from octavo_engine.worker.gpu.assemble import Assembled, assemble
from octavo_engine.worker.gpu.compute import Computed, RunnerSizes, StepComputer
from octavo_engine.worker.gpu.grammars import Grammar, Grammars
from octavo_engine.worker.gpu.host_store import GpuHostStore
from octavo_engine.worker.gpu.launched import Launched, Outcome, Readback
from octavo_engine.worker.gpu.model import GpuModel
from octavo_engine.worker.gpu.sampler import GpuSampler, RowDraw
from octavo_engine.worker.gpu.scores import (
    NOT_FINITE,
    SCORED_AT_ONCE,
    Scorer,
    Told,
    prompt_records,
)
from octavo_engine.worker.gpu.state import DeviceBatch
from octavo_engine.worker.pooling import PromptPooling
from octavo_kernels.triton.step import finish_step

if TYPE_CHECKING:  # reading files takes more than numpy and torch, and what computes takes no more
    from octavo_engine.model.pooling import Kind

NOTHING_ALLOWED: Final = (
    "No token is allowed here: allowed_token_ids, min_tokens and the grammar together forbid every token."
)
_FAILURES: Final = {-1: NOT_FINITE, -2: NOTHING_ALLOWED}


class GpuRunner:
    """Executes plans over one model, whose cache must be allocated.

    `register` gives a sequence's parameters, and its grammar, before the plan that admits it; `forget` drops them when
    it has ended. Whatever breaks the plan's contract raises: the batch can no longer be trusted. A step that cannot be
    queued, or fails on the device, gives StepError as its result: its sequences must be failed, the others go on.

    With tensor parallelism each rank runs every plan; rank 0 samples, and tells the others which tokens.
    """

    def __init__(
        self,
        model: GpuModel,
        sizes: RunnerSizes,
        *,
        invariant: bool = False,
        graph_sizes: Sequence[int] = (),
        grammars: Grammars | None = None,
        pooling: Kind = "mean",
        host: GpuHostStore | None = None,
    ) -> None:
        """Make an empty batch. graph_sizes: of the decode steps that are captured, none where there are no graphs."""
        layout, device = model.layout, model.device
        self.model, self.sizes = model, sizes
        self.batch = DeviceBatch(
            max_num_seqs=sizes.max_num_seqs,
            max_model_len=sizes.max_model_len,
            block_size=layout.block_size,
            num_groups=len(layout.groups),
            device=device,
        )
        self._computer = StepComputer(model, self.batch, sizes, invariant=invariant, graph_sizes=graph_sizes)
        self._sampler = _sampler(model, sizes) if model.communicator.rank == 0 else None
        self._scorer = Scorer(sizes.max_num_seqs, model.vocab_size, device)
        self._host = host
        self._pooling: Kind = pooling
        self._grammars = grammars
        self._settings: dict[int, SamplingParameters] = {}
        self._of_slots: list[SamplingParameters | None] = [None] * sizes.max_num_seqs
        """Of the sequences that were admitted to the slots. A batch may go on computing what has ended."""
        self._registered: dict[int, Grammar] = {}
        self._pooled: dict[int, PromptPooling] = {}
        self._failed: set[int] = set()
        """Sequences of steps that could not be queued, and of grammars that failed: what is in flight is void."""
        self._pending: list[Launched] = []

    # --- what the executor calls --------------------------------------------------------------------------------
    def register(self, sequence: int, settings: SamplingParameters, grammar: Grammar | None = None) -> None:
        """Keep the parameters of a sequence that may be admitted from now on, and the grammar it follows."""
        self._settings[sequence] = settings
        if grammar is not None:
            self._registered[sequence] = grammar

    def forget(self, sequence: int) -> None:
        """Drop what was registered of a sequence that has ended. A slot it still holds keeps its own until released."""
        for kept in (self._settings, self._registered, self._pooled):
            kept.pop(sequence, None)
        self._failed.discard(sequence)

    def set_adapter(self, slot: int, adapter: Any | None) -> None:
        """Make `slot` of the steps to come mean an opened adapter, or nothing."""
        self.model.bank.set(slot, adapter)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one plan to its end. Raises StepError if computing it fails."""
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> Launched:
        """Queue one plan behind those before it. What goes wrong with computing it is told by its result."""
        self._await_grammars(plan)
        self._apply(plan)
        launched = Launched(plan, self._pending.remove)
        self._pending.append(launched)
        try:
            launched.outcome = self._queue(plan)
        except StepError as error:
            launched.error = error
        return launched

    def probe(self) -> None:
        """Compute one token of nobody's, written nowhere. Raises whatever the backend raises: it is broken then."""
        row = Row(slot=0, sequence=-1, start=0, num_tokens=1, samples=False)
        computed = self._computer.forward(assemble([row], [True], [True]))
        first = torch.zeros(1, dtype=torch.int32, device=self.model.device)
        self.model.logits(computed.x, first).cpu()

    def warm_up(self) -> None:
        """Compute for nobody what steps are made of, so that no kernel is compiled while somebody waits for it."""
        self.probe()
        if self._sampler is not None:
            self._sampler.warm_up()
            row = torch.zeros((1, self.model.vocab_size), dtype=torch.float32, device=self.model.device)
            token = torch.zeros(1, dtype=torch.int32, device=self.model.device)
            self._scorer.score(row, token, 1, Readback(self.model.device))

    # --- a plan's differences -----------------------------------------------------------------------------------
    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.released:
            self._of_slots[slot] = None
            if self._sampler is not None:
                self._sampler.release(slot)
        if self._sampler is not None:
            for admission in plan.admitted:
                if admission.sequence not in self._settings:
                    raise RuntimeError(f"Sequence {admission.sequence} was admitted before it was registered.")
        self.batch.apply(plan)
        for admission in plan.admitted:
            self._admit(admission)
        if plan.transfers:
            if self._host is None:
                raise ContractError("A plan moves blocks to host memory, and there is none for them.")
            self._host.move(plan.transfers)
        for group in {copy.group for copy in plan.copies}:
            pairs = [(copy.source, copy.target) for copy in plan.copies if copy.group == group]
            self.model.layout.copy_blocks(group, pairs)

    def _admit(self, admission: Admission) -> None:
        self._pooled.pop(admission.sequence, None)
        if self._sampler is None:
            return
        self._of_slots[admission.slot] = settings = self._settings[admission.sequence]
        self._sampler.admit(admission.slot, settings, admission.tokens, admission.num_prompt_tokens)
        grammar = self._registered.get(admission.sequence)
        if grammar is not None:
            grammar.resume(admission.tokens[admission.num_prompt_tokens :])

    def _await_grammars(self, plan: StepPlan) -> None:
        """Where a plan admits or samples what follows a grammar, end the steps before it: it must know their tokens."""
        named = {row.sequence for row in plan.rows} | {admission.sequence for admission in plan.admitted}
        if not named.isdisjoint(self._registered):
            for launched in list(self._pending):
                launched.finish()

    # --- one step -----------------------------------------------------------------------------------------------
    def _queue(self, plan: StepPlan) -> Outcome | None:
        """Queue a plan's rows, if it has some. Raises StepError if that fails, ContractError for rows of nobody's."""
        if not plan.rows:
            return None
        try:
            return self._compute(plan.rows)
        except ContractError:
            raise
        except Exception as error:
            self._failed.update(row.sequence for row in plan.rows)
            raise StepError(plan, error, self.model.communicator.calls) from error

    def _compute(self, rows: Sequence[Row]) -> Outcome:
        for row in rows:
            if self.batch.sequences[row.slot] != row.sequence:
                raise ContractError(f"Slot {row.slot} does not hold sequence {row.sequence}.")
        grammars = [self._grammar(row) for row in rows]
        void = [
            row.sequence in self._failed or (grammar is not None and grammar.complete)
            for row, grammar in zip(rows, grammars, strict=True)
        ]
        grammars = [None if is_void else grammar for grammar, is_void in zip(grammars, void, strict=True)]
        self.batch.require_blocks([row for row, is_void in zip(rows, void, strict=True) if not is_void])
        step = assemble(rows, void, [row.discard for row in rows], self.sizes.max_num_batched_tokens)
        computed = self._computer.forward(step)
        told = Told(Readback(self.model.device), [int(self.batch.num_prompt_tokens[row.slot]) for row in rows])
        sampled = self._sample(rows, step, computed, grammars, told)
        results = torch.empty(len(computed.table), dtype=torch.int32, device=self.model.device)
        finish_step(computed.table, computed.live, sampled, self.batch.tokens, self.batch.lengths, results)
        if self._sampler is not None:
            self._sampler.count(results, rows)
        self._score_prompts(rows, step, computed, told)
        self._pool(rows, step, computed, told)
        told.tokens, told.live = told.readback.take(results), told.readback.take(computed.live)
        told.readback.sent()
        return Outcome(told.readback, lambda: self._read(rows, grammars, told))

    def _sample(
        self, rows: Sequence[Row], step: Assembled, computed: Computed, grammars: Sequence[Grammar | None], told: Told
    ) -> Tensor:
        """Return the tokens of the rows that sample, int32 [n]."""
        sampled = torch.empty(max(1, step.num_sampled), dtype=torch.int32, device=self.model.device)
        if not step.num_sampled:
            return sampled
        logits = self._computer.logits(computed, step, 0, step.num_sampled)
        if self._sampler is not None:
            draws = [self._draw(row) for row in rows if row.samples]
            masks = self._masks([grammar for row, grammar in zip(rows, grammars, strict=True) if row.samples])
            wanted = [draw.parameters.logprobs for draw in draws]
            # Log-probabilities are those of the logits as they came: what changes them works on a copy then.
            own = logits if max(wanted) < 0 else logits.clone()
            self._sampler.sample(own, draws, masks, sampled)
            told.sampled = self._scorer.sampled(logits, sampled, wanted, told.readback)
            told.wanted = wanted
        self.model.communicator.broadcast(sampled)
        return sampled

    def _masks(self, grammars: Sequence[Grammar | None]) -> Any:
        """Return the masks of rows that follow grammars, worked out while the device computes; None if no row does."""
        if self._grammars is None or not any(grammars):
            return None
        return self._grammars.masks(grammars)

    def _draw(self, row: Row) -> RowDraw:
        position = row.start + row.num_tokens
        prompt = int(self.batch.num_prompt_tokens[row.slot])
        return RowDraw(row.slot, self._parameters(row), position, position - prompt, counted=not row.discard)

    def _parameters(self, row: Row) -> SamplingParameters:
        parameters = self._of_slots[row.slot]
        if parameters is None:
            raise RuntimeError(f"Slot {row.slot} has no sampling parameters.")
        return parameters

    def _grammar(self, row: Row) -> Grammar | None:
        """Return the grammar of a row that samples; what is discarded may be anything."""
        return self._registered.get(row.sequence) if row.samples and not row.discard else None

    def _score_prompts(self, rows: Sequence[Row], step: Assembled, computed: Computed, told: Told) -> None:
        """Score the prompt tokens that rows ask for, piece by piece. Every rank computes them, rank 0 tells them."""
        first = step.num_sampled
        for index, row in enumerate(rows):
            if not row.scored:
                continue
            alternatives = max(0, self._parameters(row).prompt_logprobs) if self._sampler is not None else 0
            told.alternatives[index] = alternatives
            tokens = self.batch.tokens[row.slot, slice(*row.scored)]
            for start in range(0, len(tokens), SCORED_AT_ONCE):
                piece = tokens[start : start + SCORED_AT_ONCE]
                logits = self._computer.logits(computed, step, first + start, first + start + len(piece))
                if self._sampler is not None:
                    told.prompts.setdefault(index, []).append(
                        self._scorer.score(logits, piece, alternatives, told.readback)
                    )
            first += len(tokens)

    def _pool(self, rows: Sequence[Row], step: Assembled, computed: Computed, told: Told) -> None:
        """Take the hidden states of rows that are pooled to the host, where they are summed in the order of tokens."""
        for index, row in enumerate(rows):
            if row.pooled and self._sampler is not None:
                first = int(step.row_offsets[index])
                tokens = torch.arange(first, first + row.num_tokens, dtype=torch.int32, device=self.model.device)
                told.pooled[index] = self._pooled.setdefault(row.sequence, PromptPooling(self._pooling))
                told.hidden[index] = told.readback.take(self.model.last_hidden(computed.x, tokens).float())

    # --- once the device is done --------------------------------------------------------------------------------
    def _read(self, rows: Sequence[Row], grammars: Sequence[Grammar | None], told: Told) -> tuple[RowResult, ...]:
        tokens, live = told.tokens.tolist(), told.live.tolist()
        places = iter(range(len(rows)))
        results = []
        for index, row in enumerate(rows):
            place = next(places) if row.samples else -1
            results.append(self._result(index, row, tokens[index], place, told) if live[index] else RowResult())
        if self._grammars is None or not any(grammars):
            return tuple(results)
        # A void row's grammar has nothing to follow. Behind the plan's rows there may be one of padding.
        alive = [grammar if was_live else None for grammar, was_live in zip(grammars, live, strict=False)]
        followed = self._grammars.follow(alive, results)
        for row, grammar, result in zip(rows, alive, followed, strict=True):
            # The device has appended what a grammar could not follow: nothing that is planned behind it is valid.
            if grammar is not None and result.failed and row.sequence in self._settings:
                self._failed.add(row.sequence)
        return tuple(followed)

    def _result(self, index: int, row: Row, token: int, place: int, told: Told) -> RowResult:
        """Return what a live row gave. place: of its token among those sampled."""
        if row.pooled:
            return self._pooled_result(index, row, told)
        scores, failed = b"", _FAILURES.get(token, "") if row.samples else ""
        if index in told.prompts:
            scores, unscored = prompt_records(told.prompts[index], told.alternatives[index])
            failed = failed or unscored
        if failed or row.discard or not row.samples:
            return RowResult((), failed, prompt_logprobs=b"" if failed or row.discard else scores)
        logprobs = b""
        if told.sampled is not None and told.wanted[place] >= 0:
            logprobs = told.sampled.records(place, place + 1, told.wanted[place]).tobytes()
        return RowResult((token,), "", logprobs, scores)

    def _pooled_result(self, index: int, row: Row, told: Told) -> RowResult:
        pooled = told.pooled.get(index)
        if pooled is None:
            return RowResult()  # rank 0 tells it
        if pooled.num_tokens != row.start:
            raise ContractError(f"Sequence {row.sequence} is pooled from token {row.start}, not {pooled.num_tokens}.")
        pooled.add(told.hidden[index].numpy())
        if pooled.num_tokens < told.prompt_tokens[index]:
            return RowResult()
        vector = pooled.vector()
        return RowResult(pooled=vector.tobytes()) if np.isfinite(vector).all() else RowResult((), NOT_FINITE)


def _sampler(model: GpuModel, sizes: RunnerSizes) -> GpuSampler:
    tuning = model.products.configurations.sampling()
    return GpuSampler(model.vocab_size, sizes.max_num_seqs, model.device, tuning)
