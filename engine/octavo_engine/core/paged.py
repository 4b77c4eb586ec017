"""Paged allocation: blocks on demand, anywhere; a prefix hit shares the cached blocks themselves."""

from __future__ import annotations

from collections.abc import Sequence as Blocks

from octavo_engine.core import kv
from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.config import SchedulerConfig
from octavo_engine.core.kv import NO_BLOCK, Growth, Hit
from octavo_engine.core.limits import peak_blocks
from octavo_engine.core.sequence import Sequence
from octavo_engine.core.step import BlockCopy


class PagedAllocator:
    """`Allocator` with one pool per KV group."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.pools = tuple(BlockPool(group.num_blocks) for group in config.groups)
        self._config = config
        self._groups = config.groups
        self._block_size = config.block_size
        self._has_windows = any(group.window for group in config.groups)

    def find_hit(self, sequence: Sequence) -> Hit:
        """See `Allocator`."""
        limit = kv.shareable_blocks(sequence, self._block_size) if self._may_read(sequence) else 0
        digests = sequence.name_blocks(limit, self._block_size)
        return kv.find_hit(self.pools, self._groups, digests, limit, self._block_size)

    def can_admit(self, sequence: Sequence, hit: Hit, num_tokens: int, headroom: Blocks[int]) -> bool:
        """See `Allocator`. In a window group, what fits is the window and a step, not the whole."""
        for pool, group, blocks, spare in zip(self.pools, self._groups, hit.blocks, headroom, strict=True):
            held = [block for block in blocks if block != NO_BLOCK]
            fresh = min(
                self._blocks(num_tokens) - len(blocks), peak_blocks(group, num_tokens, self._config) - len(held)
            )
            if not pool.can_take(max(0, fresh) + spare, touching=held):
                return False
        return True

    def admit(self, sequence: Sequence, hit: Hit, num_tokens: int) -> list[BlockCopy]:
        """See `Allocator`. Nothing is copied."""
        sequence.tables = []
        for pool, blocks in zip(self.pools, hit.blocks, strict=True):
            pool.touch([block for block in blocks if block != NO_BLOCK])
            sequence.tables.append([*blocks, *pool.take(self._blocks(num_tokens) - len(blocks))])
        sequence.num_published = hit.num_tokens // self._block_size
        return []

    def can_grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """See `Allocator`."""
        blocks = self._blocks(num_tokens)
        for pool, table in zip(self.pools, sequence.tables, strict=True):
            if not pool.can_take(max(0, blocks - len(table))):
                return False
        return True

    def grow(self, sequence: Sequence, num_tokens: int) -> list[Growth]:
        """See `Allocator`."""
        blocks, growths = self._blocks(num_tokens), []
        for group, (pool, table) in enumerate(zip(self.pools, sequence.tables, strict=True)):
            first = len(table)
            if blocks > first:
                taken = pool.take(blocks - first)
                table += taken
                growths.append(Growth(group, first, tuple(taken)))
        return growths

    def publish(self, sequence: Sequence, num_tokens: int) -> list[bytes]:
        """See `Allocator`."""
        if not self._config.prefix_sharing:
            return []
        return kv.publish(self.pools, sequence, num_tokens, self._block_size)

    def release(self, sequence: Sequence, behind: int | None = None) -> None:
        """See `Allocator`. The only caller of `BlockPool.free`."""
        if behind is not None and not self._has_windows:
            return
        for pool, group, table in zip(self.pools, self._groups, sequence.tables, strict=False):
            end = len(table) if behind is None else kv.first_visible(group.window, behind, self._block_size)
            # Freed before: a run of NO_BLOCK at the table's head.
            first = end
            while first and table[first - 1] != NO_BLOCK:
                first -= 1
            pool.free(table[first:end])
            table[first:end] = [NO_BLOCK] * (end - first)
        if behind is None:
            sequence.tables = []

    def _may_read(self, sequence: Sequence) -> bool:
        return self._config.prefix_sharing and sequence.reads_cache

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
