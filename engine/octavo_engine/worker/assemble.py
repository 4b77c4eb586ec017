"""Turn a plan's rows into the flat arrays a model computes: `ModelStep`, and which row owns which logits.

row r of the step         known | drafts | padding
tokens, positions         start …                    padding repeats token 0 at the following positions
slots                     block * size + offset      -1 for padding
logit_tokens              last known, each draft     if the row samples, then the positions before the scored tokens
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo_engine.core.step import Row
from octavo_engine.worker.batch import PersistentBatch
from octavo_engine.worker.executable import ModelStep


def assemble(batch: PersistentBatch, rows: Sequence[Row], max_position: int) -> ModelStep:
    """Return the step of `rows` (none of them void). Raises RuntimeError if a token to be written has no block."""
    slots = np.array([row.slot for row in rows], dtype=np.int64)
    starts = np.array([row.start for row in rows], dtype=np.int64)
    drafts = np.array([len(row.drafts) for row in rows], dtype=np.int64)
    counts = np.array([row.num_tokens for row in rows], dtype=np.int64)
    widths = counts + np.array([row.padding for row in rows], dtype=np.int64)
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(widths, out=offsets[1:])

    owner = np.repeat(np.arange(len(rows)), widths)
    within = np.arange(offsets[-1]) - offsets[owner]
    positions = starts[owner] + within
    real = within < counts[owner]
    known = real & (within < (counts - drafts)[owner])

    tokens = np.zeros(offsets[-1], dtype=np.int32)
    tokens[known] = batch.tokens[slots[owner[known]], positions[known]]
    for row, first, last in zip(rows, offsets[:-1] + counts - drafts, offsets[:-1] + counts, strict=True):
        if row.drafts:
            tokens[first:last] = row.drafts

    return ModelStep(
        tokens=tokens,
        positions=np.minimum(positions, max_position - 1).astype(np.int32),
        row_offsets=offsets.astype(np.int32),
        context_lengths=(starts + counts).astype(np.int32),
        block_tables=_tables(batch, slots, int((starts + counts).max())),
        slots=tuple(_write_slots(table, batch.block_size, slots[owner], positions, real) for table in batch.tables),
        logit_tokens=_logit_tokens(rows, offsets[:-1], counts, drafts),
        adapters=np.array([row.adapter for row in rows], dtype=np.int32),
    )


def assemble_decode(
    batch: PersistentBatch,
    slots: NDArray[np.int64],
    starts: NDArray[np.int64],
    adapters: Sequence[int],
    max_position: int,
) -> ModelStep:
    """Return what `assemble` does for rows of one known token each that sample: most steps, with less to work out."""
    rows = np.arange(slots.size + 1, dtype=np.int32)
    tables = _tables(batch, slots, int(starts.max()) + 1)
    places, offsets = np.divmod(starts, batch.block_size)
    written = []
    for table in tables:
        blocks = table[rows[:-1], places].astype(np.int64)
        if blocks.min() < 0:
            raise RuntimeError("A token to be computed has no block.")
        written.append(blocks * batch.block_size + offsets)
    return ModelStep(
        tokens=batch.tokens[slots, starts],
        positions=np.minimum(starts, max_position - 1).astype(np.int32),
        row_offsets=rows,
        context_lengths=(starts + 1).astype(np.int32),
        block_tables=tables,
        slots=tuple(written),
        logit_tokens=rows[:-1],
        adapters=np.array(adapters, dtype=np.int32),
    )


def _tables(batch: PersistentBatch, slots: NDArray[np.int64], longest: int) -> tuple[NDArray[np.int32], ...]:
    width = -(-longest // batch.block_size)
    return tuple(table[slots, :width] for table in batch.tables)


def _write_slots(
    table: NDArray[np.int32], size: int, slots: NDArray[np.int64], positions: NDArray[np.int64], real: NDArray[np.bool_]
) -> NDArray[np.int64]:
    written = np.full(positions.size, -1, dtype=np.int64)
    blocks = table[slots[real], positions[real] // size].astype(np.int64)
    if blocks.size and blocks.min() < 0:
        raise RuntimeError("A token to be computed has no block.")
    written[real] = blocks * size + positions[real] % size
    return written


def _logit_tokens(
    rows: Sequence[Row], offsets: NDArray[np.int64], counts: NDArray[np.int64], drafts: NDArray[np.int64]
) -> NDArray[np.int32]:
    wanted = [
        np.arange(end - count - 1, end)
        for row, end, count in zip(rows, offsets + counts, drafts, strict=True)
        if row.samples
    ]
    wanted += [
        np.arange(*row.scored) - 1 - row.start + first for row, first in zip(rows, offsets, strict=True) if row.scored
    ]
    return np.concatenate(wanted).astype(np.int32) if wanted else np.empty(0, dtype=np.int32)
