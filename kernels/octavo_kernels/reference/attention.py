"""Paged attention over block tables, for decode rows and prefill chunks mixed in one step.

A row's context is cut into partitions of 256 tokens counted from position 0. Each gives (maximum, sum, weighted
values), and partitions merge in order, as in FlashAttention's online softmax (Dao et al., 2022). A query's numbers
depend on its own position only: its product with a partition always has the shape [kv_heads, tile rows, head_dim] ×
[kv_heads, head_dim, 256], whether it is alone (decode) or one of many (a chunk), and what it may not see enters as an
exact zero.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_kernels.reference.tiles import SERIAL, TILE_ROWS, Workers, padded_rows

PARTITION_TOKENS: Final = 256
_LOWEST: Final = float(np.finfo(np.float32).min)
_VECTOR: Final = 16
"""Values that every processor's vectors divide."""
_TINY: Final = float(np.finfo(np.float32).tiny)


class Partition(NamedTuple):
    """256 positions of one row's context.

    length: how many are in the cache. blocks: int64 indices of the blocks that hold them. freed: how many of those,
    from the front, were freed behind the window and are another sequence's now. first: the first block if all are
    there and consecutive, so that the cache itself can be read, else -1.
    """

    length: int
    blocks: Tensor
    freed: int
    first: int


class QueryTile(NamedTuple):
    """A fixed number of queries of one row, the last ones padding if fewer are left.

    begin, num_queries: its tokens in the step. visible: per partition that any of them sees, the partition's number in
    the row and what is hidden from them, bool [tile rows, 256], or None where nothing is.
    """

    begin: int
    num_queries: int
    visible: tuple[tuple[int, Tensor | None], ...]


class AttentionRow(NamedTuple):
    """One sequence's share of a step."""

    partitions: tuple[Partition, ...]
    tiles: tuple[QueryTile, ...]


class AttentionPlan(NamedTuple):
    """What all layers of a KV group share in one step: `queries` per tile, and the rows."""

    queries: int
    rows: tuple[AttentionRow, ...]


def plan_attention(
    row_offsets: NDArray[np.int32],
    positions: NDArray[np.int32],
    context_lengths: NDArray[np.int32],
    block_tables: NDArray[np.int32],
    block_size: int,
    group_size: int,
    window: int = 0,
) -> AttentionPlan:
    """Prepare one step's attention.

    row_offsets: [R + 1]; positions: [T]; context_lengths: [R], tokens in the cache once the step is written;
    block_tables: [R, max_blocks]; group_size: query heads per key/value head. With a window, a partition that no query
    sees is left out, so that its blocks (-1 once freed) are never read.
    """
    queries = max(1, TILE_ROWS // group_size)
    rows = []
    for row, context in enumerate(context_lengths.tolist()):
        begin, end = int(row_offsets[row]), int(row_offsets[row + 1])
        partitions = tuple(
            _partition(start, min(context - start, PARTITION_TOKENS), block_tables[row], block_size)
            for start in range(0, context, PARTITION_TOKENS)
        )
        tiles = tuple(
            _query_tile(low, positions[low : min(low + queries, end)], queries, group_size, context, window)
            for low in range(begin, end, queries)
        )
        rows.append(AttentionRow(partitions, tiles))
    return AttentionPlan(queries, tuple(rows))


def _partition(start: int, length: int, table: NDArray[np.int32], block_size: int) -> Partition:
    low = start // block_size
    blocks = table[low : low + -(-length // block_size)].astype(np.int64)
    freed = int((blocks < 0).sum())
    consecutive = length == PARTITION_TOKENS and not freed and bool((np.diff(blocks) == 1).all())
    return Partition(length, torch.from_numpy(blocks.clip(min=0)), freed, int(blocks[0]) if consecutive else -1)


def _query_tile(
    begin: int, positions: NDArray[np.int32], queries: int, group_size: int, context: int, window: int
) -> QueryTile:
    last = np.full(queries, positions[-1], dtype=np.int64)
    last[: len(positions)] = positions
    last = np.minimum(last, context - 1)
    first = np.maximum(last - window + 1, 0) if window else np.zeros_like(last)
    visible: list[tuple[int, Tensor | None]] = []
    for number, start in enumerate(range(0, int(last.max()) + 1, PARTITION_TOKENS)):
        keys = np.arange(start, start + PARTITION_TOKENS)
        hidden = (keys > last[:, None]) | (keys < first[:, None])
        if hidden.all():
            continue
        # Heads of a group follow each other within a query.
        rows = np.repeat(hidden, group_size, axis=0)
        rows = np.pad(rows, ((0, padded_rows(len(rows)) - len(rows)), (0, 0)))
        mask = torch.from_numpy(rows) if hidden.any() else None
        visible.append((number, mask))
    return QueryTile(begin, len(positions), tuple(visible))


def paged_attention(
    q: Tensor,
    cache: Tensor,
    plan: AttentionPlan,
    scale: float,
    softcap: float = 0.0,
    workers: Workers = SERIAL,
) -> Tensor:
    """Return softmax(scale · q · keysᵀ) · values, each query over the positions up to its own (within the window).

    q: [T, heads, head_dim]; cache: [2, num_blocks, block_size, kv_heads, head_dim]. Returns [T, heads, head_dim]; a
    query that sees nothing gets zeros.
    """
    result = torch.zeros_like(q)
    scaled = (q * scale).view(q.shape[0], cache.shape[3], -1, cache.shape[4])
    # A row of one tile reads each partition once, just before it is used. Several tiles share what was read.
    shared = [(row, number) for row in plan.rows if len(row.tiles) > 1 for number in range(len(row.partitions))]
    read: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def read_partition(item: int) -> None:
        row, number = shared[item]
        read[id(row), number] = _keys_values(cache, row.partitions[number], _empty_partition(cache))

    work = [(row, tile) for row in plan.rows for tile in row.tiles]

    def attend(item: int) -> None:
        row, tile = work[item]

        def keys_values(number: int) -> tuple[Tensor, Tensor]:
            return read.get((id(row), number)) or _keys_values(cache, row.partitions[number], _scratch.like(cache))

        _attend_tile(result, scaled, tile, plan.queries, keys_values, softcap)

    workers.run(len(shared), read_partition)
    workers.run(len(work), attend)
    return result


def _empty_partition(cache: Tensor) -> Tensor:
    return cache.new_empty(2, PARTITION_TOKENS // cache.shape[2], *cache.shape[2:])


class _Scratch(threading.local):
    """A thread's room for one partition that is used up before it reads the next."""

    room: Tensor | None = None

    def like(self, cache: Tensor) -> Tensor:
        if self.room is None or self.room.shape[2:] != cache.shape[2:] or self.room.dtype != cache.dtype:
            self.room = _empty_partition(cache)
        return self.room


_scratch: Final = _Scratch()


def _keys_values(cache: Tensor, partition: Partition, room: Tensor) -> tuple[Tensor, Tensor]:
    """Return a partition's keys and values, each [kv_heads, 256, head_dim] with the same strides however they lie.

    Scattered blocks are gathered into `room`, [2, 256 / block_size, block_size, kv_heads, head_dim].
    """
    _, _, block_size, kv_heads, head_dim = cache.shape
    both = room
    if partition.first >= 0:
        both = cache[:, partition.first : partition.first + PARTITION_TOKENS // block_size]
    else:
        for part in (0, 1):
            torch.index_select(cache[part], 0, partition.blocks, out=room[part, : len(partition.blocks)])
        # What lies outside the context may be another sequence's, even not finite, and 0 · inf is not 0.
        if partition.freed:
            room[:, : partition.freed].zero_()
        if partition.length < PARTITION_TOKENS:
            room.view(2, PARTITION_TOKENS, kv_heads, head_dim)[:, partition.length :].zero_()
    whole = both.reshape(2, PARTITION_TOKENS, kv_heads, head_dim)
    if padding := _padding(head_dim):
        whole = torch.nn.functional.pad(whole, (0, padding))
    keys, values = whole.transpose(1, 2)
    return keys, values


def _padding(head_dim: int) -> int:
    """Return the zeros that make a head's width whole vectors: a remainder is summed by another kernel, which on some
    processors depends on the row. They add nothing.
    """
    return -head_dim % _VECTOR


def _attend_tile(
    result: Tensor,
    scaled: Tensor,
    tile: QueryTile,
    queries: int,
    keys_values: Callable[[int], tuple[Tensor, Tensor]],
    softcap: float,
) -> None:
    _, kv_heads, group_size, head_dim = scaled.shape
    tokens = slice(tile.begin, tile.begin + tile.num_queries)
    # Whole tiles of rows here too: 15 rows leave a remainder to AVX2's kernels, which sum it in another order.
    used = tile.num_queries * group_size
    q = scaled.new_zeros(kv_heads, padded_rows(queries * group_size), head_dim + _padding(head_dim))
    q[:, :used, :head_dim] = scaled[tokens].transpose(0, 1).flatten(1, 2)
    merged: _Partial | None = None
    for number, hidden in tile.visible:
        partial = _attend_partition(q, *keys_values(number), hidden, softcap)
        merged = partial if merged is None else _merge(merged, partial)
    if merged is not None:
        output = (merged.weighted / merged.total.clamp_min(_TINY))[:, :used, :head_dim]
        output = output.view(kv_heads, tile.num_queries, group_size, head_dim)
        result[tokens] = output.transpose(0, 1).flatten(1, 2)


class _Partial(NamedTuple):
    """Of some partitions: the largest score, the sum of exp(score - largest), the values weighted with those."""

    largest: Tensor
    total: Tensor
    weighted: Tensor


def _attend_partition(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, softcap: float) -> _Partial:
    scores = torch.bmm(q, keys.transpose(1, 2))
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if hidden is not None:
        scores.masked_fill_(hidden, -math.inf)
    # Where a query sees nothing of the partition the largest is -inf, and -inf - -inf would be NaN.
    largest = scores.amax(-1, keepdim=True).clamp_min_(_LOWEST)
    weights = scores.sub_(largest).exp_()
    return _Partial(largest, weights.sum(-1, keepdim=True), torch.bmm(weights, values))


def _merge(left: _Partial, right: _Partial) -> _Partial:
    """Merge in order. A partition of which a query sees nothing leaves its numbers as they were: · exp(0) + 0."""
    largest = torch.maximum(left.largest, right.largest)
    keep, add = torch.exp(left.largest - largest), torch.exp(right.largest - largest)
    return _Partial(largest, left.total * keep + right.total * add, left.weighted * keep + right.weighted * add)
