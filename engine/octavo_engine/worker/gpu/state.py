"""The persistent batch on the device: tokens, how many of them are known, and block tables of every slot.

    slot s   tokens[s, 0 … lengths[s] - 1]   prompt, then generated; sampled tokens are appended by the device itself
             tables[g, s, i]                 block of positions i · 16 …

A plan brings only differences, and all of a plan's differences are one scatter. The host keeps a copy of the tables
(which rows share a prefix is found there) and never one of the tokens: it does not know them when it plans.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from octavo_engine.core.step import Admission, BlockAppend, Row, StepPlan
from octavo_engine.worker.gpu.staging import to_device
from octavo_kernels.triton.step import scatter

FREE = -1


class DeviceBatch:
    """Slots 0 … max_num_seqs - 1. Breaking the plan's contract raises RuntimeError: nothing may go on."""

    def __init__(
        self, *, max_num_seqs: int, max_model_len: int, block_size: int, num_groups: int, device: torch.device
    ) -> None:
        """Allocate. One token more than `max_model_len` fits: the one sampled last is never computed."""
        self.block_size = block_size
        self.device = device
        max_blocks = -(-(max_model_len + 1) // block_size)
        self.tokens = torch.zeros(max_num_seqs, max_model_len + 1, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(max_num_seqs, dtype=torch.int32, device=device)
        self.tables = torch.full((num_groups, max_num_seqs, max_blocks), -1, dtype=torch.int32, device=device)
        self.host_tables: NDArray[np.int32] = np.full((num_groups, max_num_seqs, max_blocks), -1, dtype=np.int32)
        self.sequences: NDArray[np.int64] = np.full(max_num_seqs, FREE, dtype=np.int64)
        self.num_prompt_tokens: NDArray[np.int64] = np.zeros(max_num_seqs, dtype=np.int64)

    def apply(self, plan: StepPlan) -> None:
        """Release, admit and append what the plan says, on the host at once and on the device in order."""
        for slot in plan.released:
            self.sequences[slot] = FREE
            self.host_tables[:, slot] = -1
        for admission in plan.admitted:
            self._admit(admission)
        for append in plan.appended:
            self._append(append)
        self._write_tables(plan.admitted, plan.appended)
        self._write_tokens(plan.admitted)

    def require_blocks(self, rows: Sequence[Row]) -> None:
        """Raise RuntimeError unless what rows write has blocks: on the device there may be those of others still."""
        if not rows:
            return
        slots, starts, counts = np.array([(row.slot, row.start, row.num_tokens) for row in rows]).T
        for position in (starts, starts + counts - 1):
            if (self.host_tables[:, slots, position // self.block_size] < 0).any():
                raise RuntimeError("A token to be computed has no block.")

    def _admit(self, admission: Admission) -> None:
        slot = admission.slot
        if self.sequences[slot] != FREE:
            raise RuntimeError(f"Slot {slot} still belongs to sequence {self.sequences[slot]}.")
        if len(admission.tokens) > self.tokens.shape[1]:
            raise RuntimeError(f"Sequence {admission.sequence} has {len(admission.tokens)} tokens: there is no room.")
        self.sequences[slot] = admission.sequence
        self.num_prompt_tokens[slot] = admission.num_prompt_tokens
        for group, blocks in enumerate(admission.blocks):
            self.host_tables[group, slot, : len(blocks)] = blocks

    def _append(self, append: BlockAppend) -> None:
        self.host_tables[append.group, append.slot, append.first : append.first + len(append.blocks)] = append.blocks

    def _write_tables(self, admitted: Sequence[Admission], appended: Sequence[BlockAppend]) -> None:
        """Copy what changed in the tables. A place that changed twice is written once, as it is now."""
        _, slots, width = self.host_tables.shape
        spans = [
            (group, admission.slot, 0, len(blocks))
            for admission in admitted
            for group, blocks in enumerate(admission.blocks)
        ]
        spans += [(append.group, append.slot, append.first, len(append.blocks)) for append in appended]
        if not spans:
            return
        places = np.unique(
            np.concatenate([(group * slots + slot) * width + first + np.arange(n) for group, slot, first, n in spans])
        )
        if not places.size:
            return
        values = self.host_tables.reshape(-1)[places]
        scatter(self.tables, to_device(places.astype(np.int64), self.device), to_device(values, self.device))

    def _write_tokens(self, admitted: Sequence[Admission]) -> None:
        """Copy the known tokens of admitted sequences, all of a plan's at once."""
        if not admitted:
            return
        room = self.tokens.shape[1]
        tokens = [np.array(admission.tokens, dtype=np.int32) for admission in admitted]
        places = [
            admission.slot * room + np.arange(len(of), dtype=np.int64)
            for admission, of in zip(admitted, tokens, strict=True)
        ]
        scatter(
            self.tokens,
            to_device(np.concatenate(places), self.device),
            to_device(np.concatenate(tokens), self.device),
        )
        slots = np.array([admission.slot for admission in admitted], dtype=np.int64)
        lengths = np.array([len(of) for of in tokens], dtype=np.int32)
        scatter(self.lengths, to_device(slots, self.device), to_device(lengths, self.device))
