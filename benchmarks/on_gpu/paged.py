"""A step's attention over scattered blocks, planned as the engine plans it: what is checked, timed and tuned."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_kernels.triton.attention import AttentionBuffers, AttentionWork, AttentionWorkspace, attention, upload
from octavo_kernels.triton.attention_plan import (
    INVARIANT_SPLIT_TOKENS,
    AttentionTuning,
    WorkCapacity,
    choose_split,
    find_prefixes,
    plan_work,
)

BLOCK = 16


class Heads(NamedTuple):
    """Query heads, key/value heads, head dimension."""

    query: int
    kv: int
    dim: int

    @property
    def group(self) -> int:
        """Query heads of one key/value head."""
        return self.query // self.kv


class Paged(NamedTuple):
    """Rows of (context, queries at its end) over one cache. tables: int32 [rows, blocks] on the host."""

    heads: Heads
    q: Tensor
    cache: Tensor
    offsets: NDArray[np.int32]
    contexts: NDArray[np.int32]
    tables: NDArray[np.int32]

    @property
    def read_bytes(self) -> int:
        """Bytes of keys and values that must be read at least once."""
        return int(self.contexts.sum()) * 2 * self.heads.kv * self.heads.dim * self.cache.dtype.itemsize

    @property
    def operations(self) -> float:
        """Multiplications and additions of both products, only for what each query sees."""
        counts = np.diff(self.offsets).astype(np.int64)
        contexts = self.contexts.astype(np.int64)
        seen = (counts * (contexts - counts) + counts * (counts + 1) // 2).sum()
        return 4.0 * self.heads.query * self.heads.dim * float(seen)


def make(
    rows: list[tuple[int, int]],
    heads: Heads,
    device: torch.device,
    dtype: torch.dtype,
    *,
    cache_dtype: torch.dtype | None = None,
    shared: int = 0,
    seed: int = 0,
) -> Paged:
    """Return random queries over a random cache. shared: blocks at the beginning of every row that are the first's."""
    generator = torch.Generator(device).manual_seed(seed)
    counts = [-(-context // BLOCK) for context, _ in rows]
    order = np.random.default_rng(seed).permutation(sum(counts)).astype(np.int32)
    tables = np.full((len(rows), max(counts)), -1, dtype=np.int32)
    for row, count in enumerate(counts):
        tables[row, :count], order = order[:count], order[count:]
        tables[row, :shared] = tables[0, :shared]
    size = (sum(counts), 2, heads.kv, BLOCK, heads.dim)
    cache = torch.empty(size, dtype=dtype, device=device).normal_(generator=generator)
    if cache_dtype is not None:
        cache = cache.to(cache_dtype)
    tokens = sum(queries for _, queries in rows)
    q = torch.empty((tokens, heads.query, heads.dim), dtype=dtype, device=device).normal_(generator=generator)
    offsets = np.cumsum([0, *(queries for _, queries in rows)]).astype(np.int32)
    return Paged(heads, q, cache, offsets, np.array([context for context, _ in rows], dtype=np.int32), tables)


class Planned(NamedTuple):
    """A step's attention, ready to be launched."""

    paged: Paged
    work: AttentionWork
    tables: Tensor
    out: Tensor
    tuning: AttentionTuning
    window: int
    softcap: float

    def __call__(self) -> Tensor:
        """Launch it."""
        attention(
            self.paged.q, self.paged.cache, self.work, self.tables, self.out, scale=self.paged.heads.dim**-0.5,
            window=self.window, softcap=self.softcap, tuning=self.tuning,
        )  # fmt: skip
        return self.out


def plan(
    paged: Paged,
    tuning: AttentionTuning,
    processors: int,
    *,
    invariant: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    prefixes: bool = False,
) -> Planned:
    """Cut the step into work as `AttentionPlanner` does, and bring it to the device."""
    heads, device = paged.heads, paged.q.device
    split = INVARIANT_SPLIT_TOKENS
    if not invariant:
        split = choose_split(
            paged.offsets, paged.contexts, group_size=heads.group, kv_heads=heads.kv, tuning=tuning,
            processors=processors, window=window,
        )  # fmt: skip
    multiple = split if invariant else tuning.block_n
    work = plan_work(
        paged.offsets, paged.contexts, group_size=heads.group, tuning=tuning, split_tokens=split, invariant=invariant,
        window=window, fill=None if invariant else max(1, processors // heads.kv),
        prefixes=find_prefixes(paged.tables, paged.contexts, paged.offsets, multiple=multiple) if prefixes else (),
    )  # fmt: skip
    tokens = len(paged.q)
    space = AttentionWorkspace(max(work.partials, 1), heads.query, heads.dim, device)
    buffers = AttentionBuffers(WorkCapacity(tokens, len(work.items), work.partials), space, device)
    return Planned(
        paged, upload(work, buffers), torch.from_numpy(paged.tables).to(device), torch.zeros_like(paged.q), tuning,
        window, softcap,
    )  # fmt: skip


def exact(paged: Paged, window: int = 0, softcap: float = 0.0) -> Tensor:
    """Return the definition's result, float64 on the host: softmax over what each query sees."""
    heads = paged.heads
    cache, q = paged.cache.double().cpu(), paged.q.double().cpu()
    out = torch.zeros_like(q)
    for row, context in enumerate(paged.contexts.tolist()):
        begin, end = int(paged.offsets[row]), int(paged.offsets[row + 1])
        blocks = torch.from_numpy(paged.tables[row, : -(-context // BLOCK)].astype(np.int64))
        keys, values = (
            cache[blocks, part].transpose(0, 1).reshape(heads.kv, -1, heads.dim)[:, :context] for part in (0, 1)
        )
        position = torch.arange(context - (end - begin), context)[:, None]
        key = torch.arange(context)[None, :]
        hidden = key > position if not window else (key > position) | (key <= position - window)
        keys, values = (part.repeat_interleave(heads.group, dim=0) for part in (keys, values))
        scores = torch.einsum("thd,hkd->htk", q[begin:end], keys) * heads.dim**-0.5
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        out[begin:end] = torch.einsum("htk,hkd->thd", weights, values)
    return out
