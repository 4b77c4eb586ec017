"""A step's attention, planned on the host once for all layers of each KV group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.worker.gpu.assemble import Assembled
from octavo_engine.worker.gpu.cache import GpuLayout
from octavo_kernels.triton.attention import AttentionBuffers, AttentionWork, AttentionWorkspace, upload
from octavo_kernels.triton.attention_plan import (
    INVARIANT_SPLIT_TOKENS,
    ITEM_FIELDS,
    AttentionTuning,
    Prefix,
    WorkCapacity,
    choose_split,
    find_prefixes,
    plan_work,
    work_capacity,
)
from octavo_kernels.triton.configurations import Configurations

WORKSPACE_BYTES: Final = 256 << 20
"""For partial results: 64 rows of 128k tokens in splits of 1,024, at 32 heads of 128. Beyond it rows stay whole."""
SPLITS_A_PROCESSOR: Final = 4
"""That decode rows are cut into beside one of each: enough to fill a device with programs of any length."""
SMALLEST_SPLIT: Final = 128
"""Tokens: what `choose_split` begins with."""
_TABLE_ROW: Final = ITEM_FIELDS.index("table_row")


class GroupAttention(NamedTuple):
    """One KV group's work list, on the device, and the tuning it was cut for."""

    work: AttentionWork
    tuning: AttentionTuning


class AttentionPlanner:
    """Plans into buffers of one capacity: that of any step, or, in a graph, that of its decode steps.

    With `invariant` a row's result does not depend on its company: contexts are always cut at the same places. Without,
    they are cut so as to fill the device.
    """

    def __init__(
        self,
        layout: GpuLayout,
        configurations: Configurations,
        *,
        max_tokens: int,
        max_rows: int,
        max_context: int,
        invariant: bool,
        workspace: AttentionWorkspace | None = None,
        fixed: bool = False,
    ) -> None:
        """Allocate for steps of so many tokens, rows and tokens of context. fixed: grids do not depend on the step."""
        self.workspace = workspace or _workspace(layout)
        self._layout, self._processors = layout, configurations.target.processors
        self._invariant, self._fixed = invariant, fixed
        kinds = ("invariant", "invariant") if invariant else ("decode", "decode") if fixed else ("decode", "prefill")
        self._tunings = [
            tuple(configurations.attention(kind, each.head_dim, each.group_size, layout.type) for kind in kinds)
            for each in layout.attention
        ]
        """Of each group: for steps of one query in each row, and for others."""
        self._buffers = [
            AttentionBuffers(self._capacity(group, max_tokens, max_rows, max_context), self.workspace, layout.device)
            for group in range(len(layout.groups))
        ]

    def _capacity(self, group: int, tokens: int, rows: int, context: int) -> WorkCapacity:
        attention = self._layout.attention[group]
        room = len(self.workspace.sums) // attention.num_heads
        if self._fixed:
            splits = self._graph_splits(rows, context, attention.num_kv_heads)
            # `choose_split` counts a row that is cut beside its splits.
            return WorkCapacity(tokens, 2 * rows + splits, min(rows + splits, room) if splits else 0)
        one, other = (
            work_capacity(
                tokens,
                rows,
                context,
                group_size=attention.group_size,
                tuning=tuning,
                split_tokens=INVARIANT_SPLIT_TOKENS,
                max_partials=room,
            )
            for tuning in self._tunings[group]
        )
        # Splits that fill the device may be smaller than the invariant ones.
        more = 0 if self._invariant else SPLITS_A_PROCESSOR * self._processors
        return WorkCapacity(tokens, max(one.items, other.items) + more, max(one.partials, other.partials) + more)

    def _graph_splits(self, rows: int, context: int, kv_heads: int) -> int:
        """Return how many splits a graph has programs for. All of its programs run in every step and layer: those for
        the longest contexts of all rows at once, most of which only exit, would take longer than the work.
        """
        splits = -(-SPLITS_A_PROCESSOR * self._processors // kv_heads)
        smallest = INVARIANT_SPLIT_TOKENS if self._invariant else SMALLEST_SPLIT
        # A row of its own is always cut, however long: whole, it would be left to one processor a key head.
        longest = -(-context // INVARIANT_SPLIT_TOKENS) if self._invariant else 0
        return min(max(splits, longest), rows * (-(-context // smallest) - 1))

    def plan(self, step: Assembled, host_tables: NDArray[np.int32]) -> list[GroupAttention]:
        """Return each group's work, on its way to the device. host_tables: int32 [groups, slots, max blocks]."""
        return [self._plan(group, step, host_tables[group]) for group in range(len(self._buffers))]

    def _plan(self, group: int, step: Assembled, tables: NDArray[np.int32]) -> GroupAttention:
        attention, window = self._layout.attention[group], self._layout.groups[group].window
        offsets, contexts = step.row_offsets, step.context_lengths
        tuning = self._tunings[group][int(step.longest > 1)]
        split = INVARIANT_SPLIT_TOKENS
        if not self._invariant:
            split = choose_split(
                offsets,
                contexts,
                group_size=attention.group_size,
                kv_heads=attention.num_kv_heads,
                tuning=tuning,
                processors=self._processors,
                window=window,
                capacity=self._buffers[group].capacity,
            )
        prefixes: Sequence[Prefix] = ()
        if not window:
            multiple = split if self._invariant else max(self._layout.block_size, tuning.block_n)
            prefixes = find_prefixes(tables[step.slots], contexts, offsets, multiple=multiple)
        work = plan_work(
            offsets,
            contexts,
            group_size=attention.group_size,
            tuning=tuning,
            split_tokens=split,
            invariant=self._invariant,
            window=window,
            prefixes=prefixes,
            capacity=self._buffers[group].capacity,
            fill=None if self._invariant else max(1, self._processors // attention.num_kv_heads),
        )
        # The device's tables have a row for every slot: nothing is gathered there.
        work.items[:, _TABLE_ROW] = step.slots[work.items[:, _TABLE_ROW]]
        return GroupAttention(upload(work, self._buffers[group], fixed=self._fixed), tuning)


def _workspace(layout: GpuLayout) -> AttentionWorkspace:
    heads = max(each.num_heads for each in layout.attention)
    width = max(each.head_dim for each in layout.attention)
    partials = max(1, WORKSPACE_BYTES // (4 * heads * (width + 2)))
    return AttentionWorkspace(partials, heads, width, layout.device)
