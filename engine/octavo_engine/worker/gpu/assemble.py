"""Turn a plan's rows into what the device needs of them: numbers known when it is planned, no token ids.

    tokens of the step     row 0 | row 1 | … | padding of all rows
    rows of logits         one of each row that samples, in order; then the prompt positions that are scored

Padding (static batching) is computed as tokens of no row: it reads and writes no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.core.step import Row
from octavo_engine.worker.failures import ContractError
from octavo_kernels.triton.step import ROW_FIELDS

NOBODY = -1
"""The slot of a row that is computed for nobody."""


class Assembled(NamedTuple):
    """One step on the host.

    table: int32 [R, 8] as `prepare_step` reads it, behind the plan's rows one of the padding. row_offsets: int32
    [rows + 1]; context_lengths: int32 [rows]; slots: int64 [rows]: of the plan's rows alone. logit_tokens: int32 [L].
    num_sampled: the first so many of them are sampled from. tokens: of the step, padding included; longest: of the
    table's rows.
    """

    table: NDArray[np.int32]
    row_offsets: NDArray[np.int32]
    context_lengths: NDArray[np.int32]
    slots: NDArray[np.int64]
    logit_tokens: NDArray[np.int32]
    num_sampled: int
    tokens: int
    longest: int

    @property
    def decodes(self) -> bool:
        """Whether every row is one token that is sampled from, and nothing else: what graphs are captured of."""
        rows = len(self.slots)
        return self.tokens == rows == self.num_sampled == len(self.logit_tokens)


def assemble(
    rows: Sequence[Row], void: Sequence[bool], discards: Sequence[bool], max_tokens: int | None = None
) -> Assembled:
    """Return a step's arrays. void: rows known to be computed for nobody; discards: what they sample is not kept.

    max_tokens: padding beyond so many tokens of the step is left out. Raises ContractError for drafts, which this
    runner does not verify.
    """
    if any(row.drafts for row in rows):
        raise ContractError("A plan has drafts, and the GPU runner verifies none.")
    counts = np.array([row.num_tokens for row in rows], dtype=np.int64)
    padding = sum(row.padding for row in rows)
    if padding and max_tokens is not None:
        padding = max(0, min(padding, max_tokens - int(counts.sum())))
    table = np.zeros((len(rows) + (padding > 0), ROW_FIELDS), dtype=np.int32)
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    samples = np.array([row.samples for row in rows], dtype=bool)
    own = table[: len(rows)]
    slots = np.array([row.slot for row in rows], dtype=np.int64)
    own[:, 0] = np.where(np.array(void, dtype=bool), NOBODY, slots)
    own[:, 1] = starts = np.array([row.start for row in rows], dtype=np.int32)
    own[:, 2] = counts
    own[:, 3] = offsets[:-1]
    own[:, 4] = [row.adapter for row in rows]
    own[:, 5] = samples
    own[:, 6] = np.cumsum(samples) - samples
    own[:, 7] = samples & ~np.array(discards, dtype=bool)
    if padding:
        table[-1, [0, 2, 3, 4]] = NOBODY, padding, offsets[-1], -1
    scored = [
        np.arange(*row.scored) - 1 - row.start + first for row, first in zip(rows, offsets, strict=False) if row.scored
    ]
    wanted = [offsets[1:][samples] - 1, *scored]
    return Assembled(
        table=table,
        row_offsets=offsets,
        context_lengths=(starts + counts).astype(np.int32),
        slots=slots,
        logit_tokens=np.concatenate(wanted).astype(np.int32),
        num_sampled=int(samples.sum()),
        tokens=int(offsets[-1]) + padding,
        longest=max(int(counts.max()), padding),
    )


def padded(step: Assembled, size: int) -> Assembled:
    """Return a decode step with rows of nobody up to `size`, for a graph that was captured of so many."""
    missing = size - len(step.table)
    extra = np.zeros((missing, ROW_FIELDS), dtype=np.int32)
    extra[:, 0] = extra[:, 4] = NOBODY
    extra[:, 2] = 1
    extra[:, 3] = np.arange(len(step.table), size)
    tokens = np.arange(size, dtype=np.int32)
    return step._replace(table=np.concatenate([step.table, extra]), logit_tokens=tokens, tokens=size)
