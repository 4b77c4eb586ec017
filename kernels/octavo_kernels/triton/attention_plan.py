"""One step's attention cut into programs, on the host, once for all layers of a KV group.

A row's queries are cut into tiles: as many queries as fill `block_m` rows with all query heads of one key/value head,
so that keys and values are read once for the whole group. A tile's keys are cut into splits, counted from position 0:

    position    0        1024       2048   2300
    decode row  |--------|----------|------q         3 splits: 3 programs, and their results are merged
    chunk tile  |--------|----------|---qqq          the same 3, each by its own program or one after the other

Splitting a row's keys over programs is flash-decoding (Dao et al., 2023). With the invariant split a query's numbers
depend on its own position only, because it takes no matter who computes a split: a split gives (maximum, sum, weighted
values), these merge in order, and a split of which a query sees nothing leaves its numbers exactly as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_kernels.triton.attention_prefixes import BLOCK_TOKENS, Prefix, find_prefixes

__all__ = [
    "BLOCK_TOKENS",
    "INVARIANT_SPLIT_TOKENS",
    "ITEM_FIELDS",
    "MERGE_FIELDS",
    "QUERY_FIELDS",
    "AttentionTuning",
    "Prefix",
    "WorkCapacity",
    "WorkList",
    "choose_split",
    "find_prefixes",
    "plan_work",
    "work_capacity",
]

INVARIANT_SPLIT_TOKENS: Final = 1024
"""The split that no step changes, so that results do not depend on a row's company."""

ITEM_FIELDS: Final = ("first_query", "queries", "key_begin", "key_end", "table_row", "partial")
QUERY_FIELDS: Final = ("token", "position", "first_partial")
MERGE_FIELDS: Final = ("token", "first_partial", "partials")

_SMALLEST_SPLIT: Final = 128
# What a program costs beside its keys, in keys: to start, to write its partial results and to have them merged.
_PROGRAM_KEYS: Final = 96


class AttentionTuning(NamedTuple):
    """Launch parameters: rows (queries x heads of a group) and keys of a tile, warps, stages of the pipeline."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


class WorkCapacity(NamedTuple):
    """What one step may use: tokens, items (programs per key/value head), partial results (one per token and split)."""

    tokens: int
    items: int
    partials: int


class WorkList(NamedTuple):
    """What the kernels do in one step. All arrays are int32.

    items: [items, 6], one program each (per key/value head), the longest first: first entry in `queries` and how many,
    keys [begin, end), row of the block table, and where results go: each query's partial of this number; -1: `out`.
    queries: [tokens + gathered, 3]: token, its position, its first partial result. The first entries are the tokens in
    order; those of rows that share a prefix follow again, side by side. merges: [merges, 3]: token, first partial
    result, how many. partials: partial results in all.
    """

    items: NDArray[np.int32]
    queries: NDArray[np.int32]
    merges: NDArray[np.int32]
    partials: int
    split_tokens: int
    invariant: bool
    window: int
    group_size: int
    block_m: int
    block_n: int


class _Tiles(NamedTuple):
    """Query tiles in order of their tokens; arrays [tiles] of int64. keys: [low, high) that any of its queries sees."""

    row: NDArray[np.int64]
    token: NDArray[np.int64]
    queries: NDArray[np.int64]
    position: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]


def plan_work(
    row_offsets: NDArray[np.int32],
    context_lengths: NDArray[np.int32],
    *,
    group_size: int,
    tuning: AttentionTuning,
    split_tokens: int,
    invariant: bool = True,
    window: int = 0,
    prefixes: Sequence[Prefix] = (),
    capacity: WorkCapacity | None = None,
    fill: int | None = None,
) -> WorkList:
    """Cut one step into work items.

    row_offsets: [R + 1], from 0; context_lengths: [R], tokens in the cache once the step is written, the row's queries
    being the last of them. group_size: query heads per key/value head. invariant: a query's result must not depend on
    its company: pass the same split_tokens (INVARIANT_SPLIT_TOKENS) and tuning every time; else pass choose_split's.
    window: a query at position p sees keys (p - window, p]; 0: all up to p. prefixes: from find_prefixes.

    capacity: never exceeded: tiles that no longer fit stay whole (one program goes through their splits, with the same
    result), one-query tiles being cut first; a prefix that does not fit is read by each of its rows. fill: a step of as
    many tiles fills the device, so that tiles of several queries stay whole.

    ValueError: shapes, tuning or prefixes that do not go together; more tokens or tiles than the capacity.
    """
    _check(row_offsets, context_lengths, group_size, tuning, split_tokens)
    tiles = _tiles(row_offsets, context_lengths, tuning.block_m // group_size, window)
    tokens = int(row_offsets[-1])
    if capacity is not None and (tokens > capacity.tokens or len(tiles.row) > capacity.items):
        raise ValueError(
            f"{tokens} tokens in {len(tiles.row)} tiles exceed the buffers ({capacity.tokens}, {capacity.items}): "
            "make them larger or the step smaller"
        )
    prefixes = _fitting(prefixes, tiles, row_offsets, split_tokens, tuning, group_size, capacity)
    _check_prefixes(prefixes, row_offsets, context_lengths, split_tokens if invariant else tuning.block_n, window)

    shared = np.zeros(len(row_offsets) - 1, dtype=np.int64)
    for prefix in prefixes:
        shared[prefix.rows] = prefix.tokens
    before = -(-shared[tiles.row] // split_tokens)
    tiles = tiles._replace(low=np.maximum(tiles.low, shared[tiles.row]))
    first = tiles.low // split_tokens
    splits = np.maximum(-(-tiles.high // split_tokens) - first, 0)
    splits[tiles.high <= tiles.low] = 0
    gathered = [_gathered_items(prefix, split_tokens, tuning.block_m // group_size) for prefix in prefixes]
    extra = sum(len(items) for items in gathered)
    cut = _cut(tiles, splits, before, extra, capacity, fill)

    partials = np.repeat(np.where(cut, before + splits, 0), tiles.queries)
    first_partial = np.cumsum(partials) - partials
    queries = np.empty((tokens, 3), dtype=np.int64)
    queries[:, 0] = np.arange(tokens)
    queries[:, 1] = queries[:, 0] + np.repeat(tiles.position - tiles.token, tiles.queries)
    queries[:, 2] = first_partial
    merged = np.flatnonzero(partials)
    merges = np.stack((merged, first_partial[merged], partials[merged]), axis=1)

    items = [_tile_items(tiles, np.where(cut, splits, 1), cut, first, before, split_tokens)]
    entries = [queries]
    for prefix, own in zip(prefixes, gathered, strict=True):
        own[:, 0] += sum(len(entry) for entry in entries)
        items.append(own)
        entries.append(queries[row_offsets[prefix.rows]])
    listed = np.concatenate(items)
    # The longest first: the last programs to run are then short, and the device is full until the end.
    listed = listed[np.argsort(listed[:, 2] - listed[:, 3], kind="stable")]
    return WorkList(
        listed.astype(np.int32),
        np.concatenate(entries).astype(np.int32),
        merges.astype(np.int32),
        int(partials.sum()),
        split_tokens,
        invariant,
        window,
        group_size,
        tuning.block_m,
        tuning.block_n,
    )


def choose_split(
    row_offsets: NDArray[np.int32],
    context_lengths: NDArray[np.int32],
    *,
    group_size: int,
    kv_heads: int,
    tuning: AttentionTuning,
    processors: int,
    window: int = 0,
    capacity: WorkCapacity | None = None,
) -> int:
    """Return the split, in tokens, with which a step is expected to end soonest on `processors` multiprocessors.

    Small splits fill the device and large ones cost fewer merges. Expected is the bound of list scheduling (Graham,
    1966): all work over the processors, and the longest program on top. Results then depend on the company. With a
    capacity, the split is so large that all decode rows can be cut within it.
    """
    tiles = _tiles(row_offsets, context_lengths, tuning.block_m // group_size, window)
    keys = np.maximum(tiles.high - tiles.low, 0)
    longest = int(keys.max(initial=1))
    best, soonest = 0, np.inf
    split = max(_SMALLEST_SPLIT, tuning.block_n)
    while True:
        programs = np.maximum(-(-keys // split), 1)
        work = (int(keys.sum()) + _PROGRAM_KEYS * int(programs.sum())) * kv_heads
        expected = work / processors + min(longest, split)
        decode = int(programs[(programs > 1) & (tiles.queries == 1)].sum())
        fits = capacity is None or (decode <= capacity.partials and decode + len(programs) <= capacity.items)
        if (fits or split >= longest) and expected < soonest:
            best, soonest = split, expected
        if split >= longest:
            return best
        split *= 2


def work_capacity(
    max_tokens: int,
    max_rows: int,
    max_context: int,
    *,
    group_size: int,
    tuning: AttentionTuning,
    split_tokens: int = INVARIANT_SPLIT_TOKENS,
    max_partials: int | None = None,
) -> WorkCapacity:
    """Return buffers' sizes for steps of up to max_tokens tokens in max_rows rows, contexts up to max_context tokens.

    They hold every decode step of max_rows rows fully cut into splits of split_tokens. max_partials bounds the
    workspace (heads * (head_dim + 2) float32 each): what goes beyond it stays whole. A graph of decode steps of B rows
    has max_tokens = max_rows = B.
    """
    rows = min(max_rows, max_tokens)
    per_tile = tuning.block_m // group_size
    tiles = rows + max(max_tokens - rows, 0) // per_tile
    splits = -(-max_context // split_tokens)
    partials = rows * splits if splits > 1 else 0
    if max_partials is not None:
        partials = min(partials, max_partials)
    return WorkCapacity(max_tokens, tiles + partials, partials)


def _check(
    row_offsets: NDArray[np.int32],
    context_lengths: NDArray[np.int32],
    group_size: int,
    tuning: AttentionTuning,
    split_tokens: int,
) -> None:
    if len(row_offsets) != len(context_lengths) + 1 or row_offsets[0] != 0 or (np.diff(row_offsets) < 0).any():
        raise ValueError(
            f"{len(row_offsets)} row offsets for {len(context_lengths)} rows: give rows + 1, ascending from 0"
        )
    if not 1 <= group_size <= tuning.block_m:
        raise ValueError(f"{group_size} query heads per key head do not fit block_m {tuning.block_m}: tune it larger")
    for name, size in (("block_m", tuning.block_m), ("block_n", tuning.block_n)):
        if size < BLOCK_TOKENS or size & (size - 1):
            raise ValueError(f"{name} {size}: give a power of two of at least {BLOCK_TOKENS}")
    if split_tokens <= 0 or split_tokens % tuning.block_n:
        raise ValueError(f"splits of {split_tokens} tokens: give a multiple of block_n {tuning.block_n}")


def _check_prefixes(
    prefixes: Sequence[Prefix],
    row_offsets: NDArray[np.int32],
    context_lengths: NDArray[np.int32],
    multiple: int,
    window: int,
) -> None:
    if not prefixes:
        return
    if window:
        raise ValueError("rows behind a window share no prefix: plan their group without prefixes")
    rows = np.concatenate([prefix.rows for prefix in prefixes])
    if len(np.unique(rows)) != len(rows) or (np.diff(row_offsets)[rows] != 1).any():
        raise ValueError("a row of several queries or of two prefixes: give each decode row one prefix at most")
    for prefix in prefixes:
        if prefix.tokens <= 0 or prefix.tokens % multiple or (context_lengths[prefix.rows] < prefix.tokens).any():
            raise ValueError(
                f"a prefix of {prefix.tokens} tokens: give a multiple of {multiple} that all of its rows contain"
            )


def _tiles(row_offsets: NDArray[np.int32], context_lengths: NDArray[np.int32], per_tile: int, window: int) -> _Tiles:
    offsets = row_offsets.astype(np.int64)
    counts = np.diff(offsets)
    per_row = -(-counts // per_tile)
    row = np.repeat(np.arange(len(counts)), per_row)
    start = (np.arange(len(row)) - np.repeat(np.cumsum(per_row) - per_row, per_row)) * per_tile
    queries = np.minimum(counts[row] - start, per_tile)
    position = context_lengths[row] - counts[row] + start
    high = np.maximum(position + queries, 0)
    low = np.maximum(position - window + 1, 0) if window else np.zeros_like(high)
    return _Tiles(row, offsets[row] + start, queries, position, low, high)


def _fitting(
    prefixes: Sequence[Prefix],
    tiles: _Tiles,
    row_offsets: NDArray[np.int32],
    split_tokens: int,
    tuning: AttentionTuning,
    group_size: int,
    capacity: WorkCapacity | None,
) -> Sequence[Prefix]:
    """Return the prefixes, from the front, whose rows' partial results and items have room."""
    if capacity is None or not prefixes:
        return prefixes
    high = np.zeros(len(row_offsets) - 1, dtype=np.int64)
    np.maximum.at(high, tiles.row, tiles.high)
    items, partials = len(tiles.row), 0
    for number, prefix in enumerate(prefixes):
        begin = prefix.tokens // split_tokens
        suffixes = np.maximum(-(-high[prefix.rows] // split_tokens) - begin, 0)
        shared = -(-prefix.tokens // split_tokens)
        items += shared * -(-len(prefix.rows) // (tuning.block_m // group_size)) + int(suffixes.sum())
        partials += shared * len(prefix.rows) + int(suffixes.sum())
        if items > capacity.items or partials > capacity.partials:
            return prefixes[:number]
    return prefixes


def _cut(
    tiles: _Tiles,
    splits: NDArray[np.int64],
    before: NDArray[np.int64],
    extra: int,
    capacity: WorkCapacity | None,
    fill: int | None,
) -> NDArray[np.bool_]:
    """Return which tiles give each of their splits a program: those with a prefix, then those of the fewest queries."""
    bound = before > 0
    wanted = (splits > 1) & ~bound
    if fill is not None and len(splits) >= fill:
        wanted &= tiles.queries == 1
    if capacity is not None:
        order = np.flatnonzero(wanted)
        order = order[np.lexsort((-splits[order], tiles.queries[order]))]
        partials = np.cumsum(splits[order] * tiles.queries[order])
        items = np.cumsum(splits[order] - 1)
        used = int((before + splits)[bound].sum())
        room = capacity.items - extra - len(splits) - int((splits - 1)[bound].sum())
        wanted[order] = (partials <= capacity.partials - used) & (items <= room)
    return bound | wanted


def _tile_items(
    tiles: _Tiles,
    programs: NDArray[np.int64],
    cut: NDArray[np.bool_],
    first: NDArray[np.int64],
    before: NDArray[np.int64],
    split_tokens: int,
) -> NDArray[np.int64]:
    tile = np.repeat(np.arange(len(programs)), programs)
    number = np.arange(len(tile)) - np.repeat(np.cumsum(programs) - programs, programs)
    begin, whole = (first[tile] + number) * split_tokens, ~cut[tile]
    items = np.empty((len(tile), len(ITEM_FIELDS)), dtype=np.int64)
    items[:, 0] = tiles.token[tile]
    items[:, 1] = tiles.queries[tile]
    items[:, 2] = np.where(whole, tiles.low[tile], np.maximum(begin, tiles.low[tile]))
    items[:, 3] = np.where(whole, tiles.high[tile], np.minimum(begin + split_tokens, tiles.high[tile]))
    items[:, 4] = tiles.row[tile]
    items[:, 5] = np.where(whole, -1, before[tile] + number)
    return items


def _gathered_items(prefix: Prefix, split_tokens: int, per_tile: int) -> NDArray[np.int64]:
    """Return the items of a prefix, their first query counted from the prefix's own entries."""
    starts = np.arange(0, len(prefix.rows), per_tile)
    begins = np.arange(0, prefix.tokens, split_tokens)
    items = np.empty((len(starts), len(begins), len(ITEM_FIELDS)), dtype=np.int64)
    items[..., 0] = starts[:, None]
    items[..., 1] = np.minimum(len(prefix.rows) - starts, per_tile)[:, None]
    items[..., 2] = begins
    items[..., 3] = np.minimum(begins + split_tokens, prefix.tokens)
    items[..., 4] = prefix.rows[0]
    items[..., 5] = np.arange(len(begins))
    return items.reshape(-1, len(ITEM_FIELDS))
