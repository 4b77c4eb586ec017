"""Which decode rows of a step share the beginning of their contexts, so that it is read once for all of them.

Attending a shared prefix with the queries of all its rows as one matrix is Hydragen's idea (Juravsky et al., 2024,
section 3.2). Rows share what their block tables share: equal block ids are the same keys and values.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK_TOKENS = 16
"""Tokens of one block of the cache."""


class Prefix(NamedTuple):
    """The first `tokens` positions, in the same blocks for all of `rows` (int64 row numbers of the step)."""

    rows: NDArray[np.int64]
    tokens: int


def find_prefixes(
    block_tables: NDArray[np.int32],
    context_lengths: NDArray[np.int32],
    row_offsets: NDArray[np.int32],
    *,
    multiple: int,
    min_rows: int = 4,
) -> tuple[Prefix, ...]:
    """Return disjoint groups of decode rows, chosen to spare the most reading of keys and values.

    block_tables: [R, max_blocks]; context_lengths: [R]; row_offsets: [R + 1]. multiple: a prefix has a multiple of so
    many tokens (the split of plan_work where results must be invariant, else its block_n). A group has at least
    `min_rows` rows, each with one query, which sees the whole prefix. ValueError: multiple is not one of 16.
    """
    if multiple <= 0 or multiple % BLOCK_TOKENS:
        raise ValueError(f"a prefix of a multiple of {multiple} tokens: give a multiple of {BLOCK_TOKENS}")
    unit = multiple // BLOCK_TOKENS
    units = np.minimum(context_lengths // multiple, block_tables.shape[1] // unit)
    rows = np.flatnonzero((np.diff(row_offsets) == 1) & (units > 0))
    if len(rows) < max(min_rows, 2):
        return ()
    # Rows that share more are nearer to each other once sorted by the blocks that end each of their units.
    longest = int(units[rows].max())
    ends = block_tables[rows, unit - 1 : longest * unit : unit]
    ends = np.where(np.arange(longest) < units[rows, None], ends, -1)
    rows = rows[np.lexsort(ends.T[::-1])]
    shared = _shared_units(block_tables, units, rows, unit)
    found: list[Prefix] = []
    for begin, end in _runs(shared, 0, len(rows)):
        _, groups = _best_groups(shared, begin, end, min_rows)
        found += [Prefix(rows[low:high], count * multiple) for low, high, count in groups]
    return tuple(found)


def _shared_units(
    tables: NDArray[np.int32], units: NDArray[np.int32], rows: NDArray[np.int64], unit: int
) -> NDArray[np.int64]:
    """Return how many leading units each row shares with the next one, [len(rows) - 1]."""
    shared = np.zeros(len(rows) - 1, dtype=np.int64)
    near = np.flatnonzero(tables[rows[:-1], unit - 1] == tables[rows[1:], unit - 1])
    limit = np.minimum(units[rows[near]], units[rows[near + 1]])
    width = int(limit.max(initial=0)) * unit
    left, right = tables[rows[near], :width], tables[rows[near + 1], :width]
    differs = np.ones((len(near), width + 1), dtype=bool)
    differs[:, :width] = (left != right) | (left < 0)
    shared[near] = np.minimum(differs.argmax(axis=1) // unit, limit)
    return shared


def _runs(shared: NDArray[np.int64], begin: int, end: int, level: int = 0) -> list[tuple[int, int]]:
    """Return the pieces of rows [begin, end) within which each shares more than `level` units with the next."""
    cuts = begin + 1 + np.flatnonzero(shared[begin : end - 1] <= level)
    edges = [begin, *cuts.tolist(), end]
    return [(low, high) for low, high in pairwise(edges) if high - low > 1]


def _best_groups(
    shared: NDArray[np.int64], begin: int, end: int, min_rows: int
) -> tuple[int, list[tuple[int, int, int]]]:
    """Return (units of reading spared, [(begin, end, units)]) for rows [begin, end).

    Either they are one group with what all of them share, or they part where they share least.
    """
    if end - begin < max(min_rows, 2):
        return 0, []
    level = int(shared[begin : end - 1].min())
    parts = [_best_groups(shared, low, high, min_rows) for low, high in _runs(shared, begin, end, level)]
    spared = sum(part for part, _ in parts)
    together = (end - begin - 1) * level
    if together >= spared:
        return together, [(begin, end, level)]
    return spared, [group for _, groups in parts for group in groups]
