"""Draws a step's tokens on the device, each row by its sequence's parameters.

What a sequence needs there for as long as it runs (its token counts, the ids it may use) belongs to its slot and is
allocated when the first sequence wants it. Buffers have a size for good: the addresses within them are aligned alike in
every step, so that no step compiles a kernel anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_engine.core.step import Row
from octavo_engine.sampling.parameters import SamplingParameters, make_parameters
from octavo_engine.worker.gpu.grammars import Masks
from octavo_engine.worker.gpu.staging import to_device
from octavo_kernels.triton.adjust import (
    AdjustCapacity,
    Adjustment,
    adjust,
    adjust_buffer_words,
    adjust_rows_in,
    count_sampled,
    count_tokens,
    pack_adjustments,
)
from octavo_kernels.triton.sampling import ROW_WORDS, Draw, SamplingTuning, pack_rows, rows_in, sample, workspace

_FIRST_LISTED: Final = 64
"""Biases, and ids held back, that a step has room for at first; more double it."""


class RowDraw(NamedTuple):
    """A row to draw: its slot and parameters, the index of its token, how many the sequence has generated before."""

    slot: int
    parameters: SamplingParameters
    position: int
    generated: int
    counted: bool

    @property
    def adjusted(self) -> bool:
        """Whether the parameters alone change this token's logits."""
        of = self.parameters
        return bool(of.bias_ids.size or of.allowed.size or (self.counted and of.penalised) or self.held_back)

    @property
    def held_back(self) -> bool:
        """Whether some ids must not come yet."""
        return self.generated < self.parameters.min_tokens and bool(self.parameters.held_back.size)


class GpuSampler:
    """Sampling for steps of up to `max_num_seqs` rows."""

    def __init__(self, vocab_size: int, max_num_seqs: int, device: torch.device, tuning: SamplingTuning) -> None:
        """Allocate what every step needs."""
        self._vocab_size, self._device, self._tuning = vocab_size, device, tuning
        self._slots = max_num_seqs
        self._rows = -(-max_num_seqs // 4) * 4
        self._words = -(-vocab_size // 32)
        self._space = workspace(max_num_seqs, vocab_size, device, tuning)
        self._max_bias = self._max_held = _FIRST_LISTED
        # One row each until somebody needs more: what adjusts logits is one compiled kernel, whatever a step needs.
        self._counts = torch.zeros((1, vocab_size), dtype=torch.int32, device=device)
        """int32 [slots, vocabulary]: what sequences with penalties have used."""
        self._allowed = torch.zeros((1, self._words), dtype=torch.int32, device=device)
        """int32 [slots, words]: the ids that sequences may use."""
        self._no_masks = torch.zeros((1, self._words), dtype=torch.int32, device=device)
        self._penalised: set[int] = set()
        self._limited: set[int] = set()

    def admit(self, slot: int, parameters: SamplingParameters, tokens: Sequence[int], num_prompt_tokens: int) -> None:
        """Prepare a slot for a sequence with the tokens it has so far."""
        if parameters.penalised:
            if len(self._counts) < self._slots:
                self._counts = torch.zeros(self._slots, self._vocab_size, dtype=torch.int32, device=self._device)
            known = to_device(np.array(tokens, dtype=np.int32), self._device)
            count_tokens(self._counts, slot, known, num_prompt_tokens)
            self._penalised.add(slot)
        if parameters.allowed.size:
            if len(self._allowed) < self._slots:
                self._allowed = torch.zeros(self._slots, self._words, dtype=torch.int32, device=self._device)
            self._allowed[slot].copy_(to_device(_mask(parameters.allowed, self._words), self._device))
            self._limited.add(slot)

    def release(self, slot: int) -> None:
        """Forget what the slot's sequence needed."""
        self._penalised.discard(slot)
        self._limited.discard(slot)

    def sample(self, logits: Tensor, draws: Sequence[RowDraw], masks: Masks | None, out: Tensor) -> None:
        """Write the rows' tokens to `out` int32 [R], negative where a row fails; logits float32 [R, V] may be changed.

        masks: what grammars allow of each row.
        """
        packed = np.empty((ROW_WORDS, self._rows), dtype=np.int32)
        pack_rows([_draw(each) for each in draws], packed)
        rows = rows_in(to_device(packed, self._device))
        status = None
        if masks is not None or any(draw.adjusted for draw in draws):
            status = self._adjust(logits, draws, masks)
        random = [draw.parameters for draw in draws if not draw.parameters.greedy]
        sample(
            logits,
            rows,
            out[: len(draws)],
            self._space,
            status,
            draws=bool(random),
            filters=any(each.top_k > 0 or each.top_p < 1 for each in random),
            tuning=self._tuning,
        )

    def warm_up(self) -> None:
        """Draw for nobody in every way there is: no step compiles a kernel then."""
        parameters = make_parameters(
            self._vocab_size, seed=0, top_k=1, top_p=0.5, presence_penalty=1.0, min_tokens=1, held_back_ids=(0,)
        )
        out = torch.empty(1, dtype=torch.int32, device=self._device)
        for generated in (0, 1):
            logits = torch.zeros((1, self._vocab_size), dtype=torch.float32, device=self._device)
            self.sample(logits, [RowDraw(0, parameters, 1, generated, False)], None, out)
        count_tokens(self._counts, 0, torch.zeros_like(out), 1)
        count_sampled(self._counts, torch.full_like(out, -1), out)

    def count(self, results: Tensor, rows: Sequence[Row]) -> None:
        """Count the tokens that a step appended, int32 [rows or more]: the next step's penalties look at them."""
        counted = [row.slot if row.slot in self._penalised and not row.discard else -1 for row in rows]
        if max(counted) >= 0:
            slots = to_device(np.array(counted, dtype=np.int32), self._device)
            count_sampled(self._counts, slots, results[: len(rows)])

    def _adjust(self, logits: Tensor, draws: Sequence[RowDraw], masks: Masks | None) -> Tensor:
        """Change the logits, and return what `sample` must know of them before that."""
        grammars = [-1] * len(draws) if masks is None else masks.rows.tolist()
        adjustments = [self._adjustment(draw, grammar) for draw, grammar in zip(draws, grammars, strict=True)]
        self._max_bias = _room(self._max_bias, sum(len(each.bias_ids) for each in adjustments))
        self._max_held = _room(self._max_held, sum(len(each.held_back) for each in adjustments))
        sizes = AdjustCapacity(self._rows, self._max_bias, self._max_held, 0)
        buffer = np.zeros(adjust_buffer_words(sizes), dtype=np.int32)
        pack_adjustments(adjustments, buffer, sizes)
        status = torch.empty(len(draws), dtype=torch.int32, device=self._device)
        adjust(
            logits,
            adjust_rows_in(to_device(buffer, self._device), sizes),
            status,
            counts=self._counts,
            allowed_masks=self._allowed,
            grammar_masks=self._no_masks if masks is None else to_device(masks.masks, self._device),
        )
        return status

    def _adjustment(self, draw: RowDraw, grammar: int) -> Adjustment:
        of = draw.parameters
        penalised = draw.counted and draw.slot in self._penalised
        return Adjustment(
            bias_ids=of.bias_ids.tolist(),
            bias=of.bias.tolist(),
            count_row=draw.slot if penalised else -1,
            repetition=of.repetition,
            presence=of.presence,
            frequency=of.frequency,
            allowed=draw.slot if draw.slot in self._limited else -1,
            grammar=grammar,
            generated=draw.generated,
            min_tokens=of.min_tokens,
            held_back=of.held_back.tolist() if draw.held_back else (),
        )


def _draw(row: RowDraw) -> Draw:
    of = row.parameters
    return Draw(of.seed, of.choice, row.position, of.greedy, of.temperature, of.top_k, of.top_p, of.min_p)


def _room(held: int, wanted: int) -> int:
    """Return the room for what is wanted: what there is, doubled until it is enough."""
    while held < wanted:
        held *= 2
    return held


def _mask(ids: NDArray[np.int64], words: int) -> NDArray[np.int32]:
    """Return bits of ids, the lowest first, [words]."""
    bits = np.zeros(words * 32, dtype=np.uint8)
    bits[ids] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
