"""Paged allocation: blocks on demand, anywhere; a prefix hit shares the cached blocks themselves.

With a host tier, what is evicted is saved there and may be hit again: then it is loaded into a block taken for it.
"""

from __future__ import annotations

from collections.abc import Sequence as Blocks
from functools import partial

from octavo_engine.core import kv
from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.config import SchedulerConfig
from octavo_engine.core.host_tier import NOWHERE, HostTier
from octavo_engine.core.kv import IN_HOST_TIER, NO_BLOCK, Find, Growth, Hit
from octavo_engine.core.limits import peak_blocks
from octavo_engine.core.sequence import Sequence
from octavo_engine.core.step import BlockCopy, BlockTransfer


class PagedAllocator:
    """`Allocator` with one pool per KV group, and one host tier where the groups have places for it."""

    def __init__(self, config: SchedulerConfig) -> None:
        offloads = all(group.host_places for group in config.groups)
        self.tiers = tuple(HostTier(group.host_places) for group in config.groups) if offloads else ()
        self.pools = tuple(
            BlockPool(group.num_blocks, partial(self._save, index) if offloads else None)
            for index, group in enumerate(config.groups)
        )
        self._finds: list[Find] = [partial(self._find, *both) for both in zip(self.pools, self.tiers, strict=False)]
        self._finds = self._finds or [pool.find for pool in self.pools]
        self._transfers: list[BlockTransfer] = []
        self._config = config
        self._groups = config.groups
        self._block_size = config.block_size
        self._has_windows = any(group.window for group in config.groups)

    def find_hit(self, sequence: Sequence) -> Hit:
        """See `Allocator`."""
        limit = kv.shareable_blocks(sequence, self._block_size) if self._may_read(sequence) else 0
        digests = sequence.name_blocks(limit, self._block_size)
        return kv.find_hit(self._finds, self._groups, digests, limit, self._block_size)

    def can_admit(self, sequence: Sequence, hit: Hit, num_tokens: int, headroom: Blocks[int]) -> bool:
        """See `Allocator`. In a window group, what fits is the window and a step, not the whole."""
        for pool, group, blocks, spare in zip(self.pools, self._groups, hit.blocks, headroom, strict=True):
            held = [block for block in blocks if block >= 0]
            fresh = min(
                self._blocks(num_tokens) - len(blocks) + blocks.count(IN_HOST_TIER),
                peak_blocks(group, num_tokens, self._config) - len(held),
            )
            if not pool.can_take(max(0, fresh) + spare, touching=held):
                return False
        return True

    def admit(self, sequence: Sequence, hit: Hit, num_tokens: int) -> list[BlockCopy]:
        """See `Allocator`. Nothing is copied."""
        sequence.tables = []
        for group, (pool, blocks) in enumerate(zip(self.pools, hit.blocks, strict=True)):
            pool.touch([block for block in blocks if block >= 0])
            table = self._load(group, sequence, blocks) if IN_HOST_TIER in blocks else list(blocks)
            sequence.tables.append([*table, *pool.take(self._blocks(num_tokens) - len(blocks))])
        sequence.num_published = hit.num_tokens // self._block_size
        return []

    def take_transfers(self) -> tuple[BlockTransfer, ...]:
        """See `Allocator`."""
        transfers = tuple(self._transfers)
        self._transfers.clear()
        return transfers

    def expect(self, sequence: Sequence) -> None:
        """See `Allocator`."""
        if self.tiers and self._may_read(sequence):
            sequence.num_expected = len(sequence.digests)
            for tier in self.tiers:
                tier.expect(sequence.digests, sequence.key)

    def expect_no_more(self, sequence: Sequence) -> None:
        """See `Allocator`."""
        expected, sequence.num_expected = sequence.digests[: sequence.num_expected], 0
        for tier in self.tiers:
            tier.expect_no_more(expected, sequence.key)

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

    def _load(self, group: int, sequence: Sequence, blocks: Blocks[int]) -> list[int]:
        """Return a hit's table, with blocks taken for what is in host memory: whoever comes next finds it in them."""
        pool, tier = self.pools[group], self.tiers[group]
        absent = [index for index, block in enumerate(blocks) if block == IN_HOST_TIER]
        digests = [sequence.digests[index] for index in absent]
        # Held first: taking blocks saves others, which must not take these places.
        places, table = tier.hold(digests), list(blocks)
        for index, digest, place, block in zip(absent, digests, places, pool.take(len(absent)), strict=True):
            table[index] = block
            pool.publish(block, digest)
            self._transfers.append(BlockTransfer(group, block, place, saves=False))
        tier.loaded(digests)
        return table

    def _save(self, group: int, block: int, digest: bytes) -> None:
        """Keep in host memory what is evicted."""
        place = self.tiers[group].save(digest)
        if place != NOWHERE:
            self._transfers.append(BlockTransfer(group, block, place, saves=True))

    @staticmethod
    def _find(pool: BlockPool, tier: HostTier, digest: bytes) -> int:
        block = pool.find(digest)
        return IN_HOST_TIER if block == NO_BLOCK and tier.find(digest) != NOWHERE else block

    def _may_read(self, sequence: Sequence) -> bool:
        return self._config.prefix_sharing and sequence.reads_cache

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
