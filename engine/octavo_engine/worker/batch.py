"""The persistent batch: what the worker remembers of every slot between steps.

    slot s   tokens[s, 0 … lengths[s] - 1]      prompt, then generated; sampled tokens are appended at once
             tables[g][s, i]                    block of positions i * block_size …, -1 where there is none
             settings[s], counts[s]             how its tokens are drawn, and which it has used (if that matters)
             grammars[s]                        where it is in its grammar (if it has one)
             pooled[s]                          what its prompt's embedding is made of so far (if it is asked for)

A plan brings only differences: a slot released, a slot taken (first time or after a preemption), blocks appended.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo_engine.core.step import Admission, BlockAppend
from octavo_engine.sampling.penalties import TokenCounts
from octavo_engine.sampling.settings import SamplingSettings
from octavo_engine.worker.grammar import Grammar
from octavo_engine.worker.pooling import PromptPooling

FREE = -1


class PersistentBatch:
    """Slots 0 … max_num_seqs - 1 as arrays. Breaking the plan's contract raises RuntimeError: nothing may go on."""

    def __init__(
        self, *, max_num_seqs: int, max_model_len: int, block_size: int, num_groups: int, vocab_size: int
    ) -> None:
        """Allocate the arrays. One token more than `max_model_len` fits: the one sampled last is never computed."""
        self.vocab_size = vocab_size
        self.block_size = block_size
        max_blocks = -(-(max_model_len + 1) // block_size)
        self.sequences: NDArray[np.int64] = np.full(max_num_seqs, FREE, dtype=np.int64)
        self.tokens: NDArray[np.int32] = np.zeros((max_num_seqs, max_model_len + 1), dtype=np.int32)
        self.lengths: NDArray[np.int64] = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_prompt_tokens = [0] * max_num_seqs
        self.tables: list[NDArray[np.int32]] = [
            np.full((max_num_seqs, max_blocks), -1, dtype=np.int32) for _ in range(num_groups)
        ]
        self.settings: list[SamplingSettings | None] = [None] * max_num_seqs
        self.counts: list[TokenCounts | None] = [None] * max_num_seqs
        self.grammars: list[Grammar | None] = [None] * max_num_seqs
        self.pooled: list[PromptPooling | None] = [None] * max_num_seqs

    def release(self, slot: int) -> None:
        """Forget what the slot holds."""
        self.sequences[slot] = FREE
        self.lengths[slot] = 0
        for table in self.tables:
            table[slot] = -1
        self.settings[slot] = self.counts[slot] = self.grammars[slot] = self.pooled[slot] = None

    def admit(self, admission: Admission, settings: SamplingSettings, grammar: Grammar | None = None) -> None:
        """Give the slot to a sequence with the tokens and blocks it has so far."""
        slot, tokens = admission.slot, np.array(admission.tokens, dtype=np.int32)
        if self.sequences[slot] != FREE:
            raise RuntimeError(f"Slot {slot} still belongs to sequence {self.sequences[slot]}.")
        self.sequences[slot] = admission.sequence
        self.lengths[slot] = tokens.size
        self.tokens[slot, : tokens.size] = tokens
        self.num_prompt_tokens[slot] = admission.num_prompt_tokens
        for table, blocks in zip(self.tables, admission.blocks, strict=True):
            table[slot, : len(blocks)] = blocks
        self.settings[slot] = settings
        if settings.penalised:
            self.counts[slot] = TokenCounts(self.vocab_size, tokens, admission.num_prompt_tokens)
        self.grammars[slot] = grammar
        if grammar is not None:
            grammar.resume(admission.tokens[admission.num_prompt_tokens :])

    def holds(self, slots: NDArray[np.int64], sequences: Sequence[int], lengths: NDArray[np.int64]) -> bool:
        """Say whether each slot holds its sequence, with so many known tokens."""
        return bool((self.lengths[slots] == lengths).all() and (self.sequences[slots] == np.array(sequences)).all())

    def append_blocks(self, append: BlockAppend) -> None:
        """Write blocks into the slot's table from index `first` on."""
        self.tables[append.group][append.slot, append.first : append.first + len(append.blocks)] = append.blocks

    def append_tokens(self, slot: int, tokens: Sequence[int]) -> None:
        """Append what the slot sampled, so that the next plan in flight finds it."""
        length = int(self.lengths[slot])
        self.tokens[slot, length : length + len(tokens)] = tokens
        self.lengths[slot] = length + len(tokens)

    def append_one_each(self, slots: NDArray[np.int64], tokens: Sequence[int]) -> None:
        """Append one token to each slot, no slot named twice."""
        lengths = self.lengths[slots]
        self.tokens[slots, lengths] = tokens
        self.lengths[slots] = lengths + 1
