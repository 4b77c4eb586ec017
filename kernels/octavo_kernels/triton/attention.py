"""Paged attention on the GPU: decode rows and prefill chunks mixed in one launch, and one small launch that merges.

The host plans a step once (`plan_work`), uploads the list once (`upload`), and every layer of the KV group runs it
(`attention`). Everything the kernels read lies in buffers allocated once, so that a CUDA graph may replay the launches
with another step's list.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo_kernels.triton.attention_kernels import attend, merge
from octavo_kernels.triton.attention_plan import (
    BLOCK_TOKENS,
    ITEM_FIELDS,
    MERGE_FIELDS,
    QUERY_FIELDS,
    AttentionTuning,
    WorkCapacity,
    WorkList,
)
from octavo_kernels.triton.launch import launch
from octavo_kernels.triton.tile import precision

_LOG2_E: Final = math.log2(math.e)
_HEADER: Final = 4
_TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


class AttentionWorkspace:
    """Room for partial results, float32. Launches run in order: all layers and all lists of a stream share one.

    partials: how many; heads, head_dim: the largest of any layer.
    """

    def __init__(self, partials: int, heads: int, head_dim: int, device: torch.device | str) -> None:
        self.values = torch.empty(partials * heads * head_dim, dtype=torch.float32, device=device)
        self.maxima = torch.empty(partials * heads, dtype=torch.float32, device=device)
        self.sums = torch.empty_like(self.maxima)


class AttentionBuffers:
    """What one KV group's work list is uploaded to. A graph keeps buffers of its own, of its own capacity.

    lists: int32, in the order header, items, merges, queries; the header says how many items and merges there are and
    where merges and queries begin, so that a step uploads no more than it uses. workspace: shared by all buffers whose
    launches run on one stream.
    """

    def __init__(self, capacity: WorkCapacity, workspace: AttentionWorkspace, device: torch.device | str) -> None:
        self.capacity = capacity
        self.workspace = workspace
        size = (
            _HEADER
            + capacity.items * len(ITEM_FIELDS)
            + capacity.tokens * len(MERGE_FIELDS)
            + 2 * capacity.tokens * len(QUERY_FIELDS)
        )
        self.lists = torch.zeros(size, dtype=torch.int32, device=device)
        self._captured: tuple[int, ...] | None = None

    def keep_kind(self, work: WorkList) -> None:
        """Raise ValueError unless a graph captured with these buffers can run this list (same constants)."""
        split = work.split_tokens if work.invariant else 0
        kind = (split, work.window, work.group_size, work.block_m, work.block_n)
        if self._captured not in (None, kind):
            raise ValueError(
                f"(split, window, group, block_m, block_n) {kind}: the graph has {self._captured}; capture another"
            )
        self._captured = kind


class AttentionWork(NamedTuple):
    """An uploaded work list. items, merges: the launches' grids, which in a graph are the buffers' capacity."""

    lists: Tensor
    workspace: AttentionWorkspace
    items: int
    merges: int
    partials: int
    split_tokens: int
    invariant: bool
    window: int
    group_size: int
    block_m: int
    block_n: int


def upload(work: WorkList, buffers: AttentionBuffers, *, fixed: bool = False) -> AttentionWork:
    """Copy a step's list to the device, in one copy that the host does not wait for.

    fixed: the grids are the capacity, whatever the step: capture a graph with the result once, and before each replay
    call this again with the same buffers. Such a step must not exceed what its capture assumed, which plan_work's
    `capacity` argument (buffers.capacity) sees to. ValueError: the list does not fit the buffers, or is of another kind
    than that of the graph.
    """
    capacity = buffers.capacity
    if fixed:
        buffers.keep_kind(work)
    too_large = len(work.items) > capacity.items or work.partials > capacity.partials
    if too_large or len(work.merges) > capacity.tokens or len(work.queries) > 2 * capacity.tokens:
        raise ValueError(
            f"{len(work.items)} items and {work.partials} partial results exceed the buffers' {capacity}: "
            "plan the step with their capacity"
        )
    merges_at = _HEADER + work.items.size
    header = np.array([len(work.items), len(work.merges), merges_at, merges_at + work.merges.size], dtype=np.int32)
    packed = torch.from_numpy(
        np.concatenate((header, *(part.ravel() for part in (work.items, work.merges, work.queries))))
    )
    if buffers.lists.device.type == "cuda":
        # Pinned memory comes from a cache that keeps it until the copy is done.
        packed = packed.pin_memory()
    buffers.lists[: len(packed)].copy_(packed, non_blocking=True)
    return AttentionWork(
        buffers.lists,
        buffers.workspace,
        capacity.items if fixed else len(work.items),
        (capacity.tokens if capacity.partials else 0) if fixed else len(work.merges),
        capacity.partials if fixed else work.partials,
        work.split_tokens,
        work.invariant,
        work.window,
        work.group_size,
        work.block_m,
        work.block_n,
    )


def attention(
    q: Tensor,
    cache: Tensor,
    work: AttentionWork,
    block_tables: Tensor,
    out: Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    tuning: AttentionTuning,
) -> None:
    """Write softmax(scale * q * keysᵀ) * values to `out`, each query over the positions up to its own.

    q, out: [T, heads, head_dim] of float32, bfloat16 or float16, a token's heads contiguous. cache: [num_blocks, 2,
    kv_heads, 16, head_dim] of these or float8_e4m3fn, a block contiguous; products are in q's type, sums in float32.
    block_tables: int32 [R, max_blocks], -1 where there is no block, which is never read. softcap: scores are
    tanh(score / softcap) * softcap; 0: as they are. tuning, window: those of the work list. Tokens of no row stay.

    ValueError: shapes or types that do not go together, or another tuning or window than planned for.
    """
    _check(q, cache, work, block_tables, out, window, tuning)
    heads, head_dim = q.shape[1], q.shape[2]
    kv_heads = cache.shape[2]
    fp8 = cache.dtype == torch.float8_e4m3fn
    space = work.workspace
    shape = {
        "KV_HEADS": kv_heads,
        "GROUP": heads // kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(16, _power_of_two(head_dim)),
    }
    launch(
        attend,
        (work.items, kv_heads),
        q,
        cache.view(torch.uint8) if fp8 else cache,
        out,
        space.values,
        space.maxima,
        space.sums,
        work.lists,
        block_tables,
        q.stride(0),
        out.stride(0),
        cache.stride(0),
        block_tables.stride(0),
        work.split_tokens,
        float(scale if softcap else scale * _LOG2_E),
        window,
        float(softcap),
        **shape,
        BLOCK_M=tuning.block_m,
        BLOCK_N=tuning.block_n,
        FP8=fp8,
        WINDOW=window > 0,
        SOFTCAP=softcap > 0,
        PARTITIONED=work.invariant,
        PRECISION=precision(q.dtype),
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
    )
    launch(
        merge,
        (work.merges, kv_heads),
        out,
        space.values,
        space.maxima,
        space.sums,
        work.lists,
        out.stride(0),
        **shape,
        BLOCK_G=_power_of_two(heads // kv_heads),
        num_warps=4,
        num_stages=2,
    )


def _check(
    q: Tensor,
    cache: Tensor,
    work: AttentionWork,
    block_tables: Tensor,
    out: Tensor,
    window: int,
    tuning: AttentionTuning,
) -> None:
    heads, head_dim = q.shape[1:]
    if cache.dim() != 5 or cache.shape[1] != 2 or cache.shape[3:] != (BLOCK_TOKENS, head_dim):
        raise ValueError(f"a cache of shape {tuple(cache.shape)}: give [blocks, 2, kv_heads, 16, {head_dim}]")
    if heads != cache.shape[2] * work.group_size:
        raise ValueError(f"{heads} heads over {cache.shape[2]} key heads: the list is for groups of {work.group_size}")
    if q.dtype not in _TYPES or out.shape != q.shape:
        raise ValueError(
            f"queries {q.dtype} {tuple(q.shape)}: give float32, bfloat16 or float16, and out of this shape"
        )
    if any(part.stride()[1:] != (head_dim, 1) for part in (q, out)):
        raise ValueError("strided heads: give queries and output contiguous from the second dimension")
    if cache.stride()[1:] != (cache[0].numel() // 2, BLOCK_TOKENS * head_dim, head_dim, 1):
        raise ValueError("a cache whose blocks are not contiguous: only the first dimension may have a stride")
    if block_tables.dtype != torch.int32 or block_tables.stride(1) != 1:
        raise ValueError(f"block tables of {block_tables.dtype}: give contiguous rows of int32")
    if (tuning.block_m, tuning.block_n, window) != (work.block_m, work.block_n, work.window):
        raise ValueError(
            f"{tuning} and window {window}: the list is for block_m {work.block_m}, block_n {work.block_n} "
            f"and window {work.window}"
        )
    needed = work.partials * heads
    if needed > len(work.workspace.maxima) or needed * head_dim > len(work.workspace.values):
        raise ValueError(
            f"{work.partials} partial results of {heads} x {head_dim} exceed the workspace: make it larger"
        )


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
