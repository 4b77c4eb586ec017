"""A step's inputs and its sampled tokens, on the device: the persistent batch is read and written there.

A row names a slot of the batch and positions start … start + count - 1; which tokens these are, and where their keys
and values go, is read from what the device holds. So a step can be queued while the one before it, which samples some
of its tokens, still runs: the host never waits for a token id (Zheng et al., SGLang's overlap scheduling, 2024).

    rows [R, 8]   slot | start | count | first token | adapter | samples (0, 1) | where its logits are | appends (0, 1)

A row whose tokens did not come true is void: it is computed as if they were token 0, written nowhere, and samples VOID.
That is a row that samples and does not start where its slot's known tokens end, or one that reads beyond them. A row of
slot -1 is padding.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from octavo_kernels.triton.launch import launch

ROW_FIELDS: Final = 8
VOID: Final = -3
"""The token of a row that was not to be computed; above it are the failures of sampling."""
_CHUNK: Final = 128


@triton.jit(do_not_specialize=["max_blocks", "max_position", "num_slots", "batch_stride", "slots_stride"])
def _prepare_kernel(
    rows: tl.tensor,
    batch_tokens: tl.tensor,
    lengths: tl.tensor,
    tables: tl.tensor,
    tokens: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    adapters: tl.tensor,
    live: tl.tensor,
    batch_stride: tl.tensor,
    max_blocks: tl.tensor,
    max_position: tl.tensor,
    num_slots: tl.tensor,
    slots_stride: tl.tensor,
    GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    row, chunk = tl.program_id(0), tl.program_id(1)
    slot = tl.load(rows + row * 8)
    start = tl.load(rows + row * 8 + 1)
    count = tl.load(rows + row * 8 + 2)
    first = tl.load(rows + row * 8 + 3)
    adapter = tl.load(rows + row * 8 + 4)
    samples = tl.load(rows + row * 8 + 5)
    appends = tl.load(rows + row * 8 + 7)
    real = slot >= 0
    held = tl.maximum(slot, 0).to(tl.int64)
    known = tl.load(lengths + held)
    end = start + count
    # What is thrown away may be anything that is known.
    exact = (samples & appends) != 0
    alive = real & (known >= end) & ((known == end) | (exact == 0))
    if chunk == 0:
        tl.store(live + row, alive.to(tl.int32))
    within = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = within < count
    # One comparison: the interpreter cannot widen a scalar mask to a block's.
    readable = within < tl.where(alive, count, 0)
    position = start + within
    token = tl.load(batch_tokens + held * batch_stride + position, mask=readable, other=0)
    tl.store(tokens + first + within, token, mask=inside)
    tl.store(positions + first + within, tl.minimum(position, max_position - 1), mask=inside)
    tl.store(adapters + first + within, tl.zeros_like(within) + adapter, mask=inside)
    for group in tl.static_range(GROUPS):
        table = tables + (group * num_slots + held) * max_blocks
        block = tl.load(table + position // 16, mask=readable, other=-1).to(tl.int64)
        written = tl.where(block >= 0, block * 16 + position % 16, -1)
        tl.store(slots + group * slots_stride + first + within, written, mask=inside)


@triton.jit(do_not_specialize=["batch_stride"])
def _finish_kernel(
    rows: tl.tensor,
    live: tl.tensor,
    sampled: tl.tensor,
    batch_tokens: tl.tensor,
    lengths: tl.tensor,
    results: tl.tensor,
    batch_stride: tl.tensor,
) -> None:
    row = tl.program_id(0)
    slot = tl.load(rows + row * 8)
    samples = tl.load(rows + row * 8 + 5)
    place = tl.load(rows + row * 8 + 6)
    appends = tl.load(rows + row * 8 + 7)
    alive = tl.load(live + row) != 0
    taken = alive & (samples != 0)
    token = tl.load(sampled + place, mask=taken, other=-3)
    tl.store(results + row, token)
    held = tl.maximum(slot, 0).to(tl.int64)
    length = tl.load(lengths + held)
    kept = taken & (appends != 0) & (token >= 0)
    tl.store(batch_tokens + held * batch_stride + length, token, mask=kept)
    tl.store(lengths + held, length + 1, mask=kept)


def prepare_step(
    rows: Tensor,
    batch_tokens: Tensor,
    lengths: Tensor,
    tables: Tensor,
    *,
    tokens: Tensor,
    positions: Tensor,
    slots: Tensor,
    adapters: Tensor,
    live: Tensor,
    max_position: int,
    longest: int,
) -> None:
    """Write a step's tokens, positions, cache slots and adapters; no slot is named by two rows.

    rows: int32 [R, 8] as above; batch_tokens: int32 [slots, room]; lengths: int32 [slots], tokens known of each;
    tables: int32 [groups, slots, max blocks]. Written: tokens, positions, adapters: int32 [T]; slots: int64
    [groups, T]; live: int32 [R]. longest: tokens of the longest row.
    """
    groups, num_slots, max_blocks = tables.shape
    launch(
        _prepare_kernel,
        (rows.shape[0], -(-longest // _CHUNK)),
        rows,
        batch_tokens,
        lengths,
        tables,
        tokens,
        positions,
        slots,
        adapters,
        live,
        batch_tokens.stride(0),
        max_blocks,
        max_position,
        num_slots,
        slots.stride(0),
        GROUPS=groups,
        CHUNK=_CHUNK,
        num_warps=4,
    )


def finish_step(
    rows: Tensor, live: Tensor, sampled: Tensor, batch_tokens: Tensor, lengths: Tensor, results: Tensor
) -> None:
    """Append what was sampled to the batch, and tell it: results int32 [R], VOID where a row gave nothing.

    sampled: int32 [L], negative where a row failed: it is told and not appended. Others as `prepare_step` takes them.
    """
    launch(
        _finish_kernel,
        (rows.shape[0],),
        rows,
        live,
        sampled,
        batch_tokens,
        lengths,
        results,
        batch_tokens.stride(0),
        num_warps=1,
    )


@triton.jit(do_not_specialize=["count"])
def _scatter_kernel(
    places: tl.tensor, values: tl.tensor, target: tl.tensor, count: tl.tensor, CHUNK: tl.constexpr
) -> None:
    index = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    inside = index < count
    place = tl.load(places + index, mask=inside, other=0)
    tl.store(target + place, tl.load(values + index, mask=inside, other=0), mask=inside)


def scatter(target: Tensor, places: Tensor, values: Tensor) -> None:
    """target.view(-1)[places] = values; no place is named twice. places: int64 [n]; values: [n], target's type."""
    count = places.shape[0]
    launch(_scatter_kernel, (-(-count // 256),), places, values, target, count, CHUNK=256, num_warps=4)


__all__ = ["ROW_FIELDS", "VOID", "finish_step", "prepare_step", "scatter"]
