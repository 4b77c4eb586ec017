"""Contiguous allocation: consecutive blocks for `max_model_len`, reserved when a sequence is admitted.

The pool is cut into runs; block j of a sequence is always block j of its run. Freed runs keep their published blocks
until the run is taken again. A prefix hit copies cached blocks into the sequence's own run: time saved, memory not. A
cached block that lies in the run being taken stays where it is, because the same prefix has the same place in any run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Blocks

from octavo_engine.core import kv
from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.config import SchedulerConfig
from octavo_engine.core.host_tier import HostTier
from octavo_engine.core.kv import NO_BLOCK, Growth, Hit
from octavo_engine.core.sequence import Sequence
from octavo_engine.core.step import BlockCopy, BlockTransfer


class ContiguousAllocator:
    """`Allocator` that reserves; growing never fails and releases nothing before the end."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.pools = tuple(BlockPool(group.num_blocks) for group in config.groups)
        self.tiers: tuple[HostTier, ...] = ()
        self.run_blocks = -(-config.max_model_len // config.block_size)
        self._config = config
        # The longest free first.
        self._free_runs = deque(range(min(group.num_blocks for group in config.groups) // self.run_blocks))

    def find_hit(self, sequence: Sequence) -> Hit:
        """See `Allocator`."""
        block_size = self._config.block_size
        reads = self._config.prefix_sharing and sequence.reads_cache
        limit = kv.shareable_blocks(sequence, block_size) if reads else 0
        digests = sequence.name_blocks(limit, block_size)
        return kv.find_hit([pool.find for pool in self.pools], self._config.groups, digests, limit, block_size)

    def can_admit(self, sequence: Sequence, hit: Hit, num_tokens: int, headroom: Blocks[int]) -> bool:
        """See `Allocator`. A free run is enough: nobody grows out of its own."""
        return bool(self._free_runs)

    def admit(self, sequence: Sequence, hit: Hit, num_tokens: int) -> list[BlockCopy]:
        """See `Allocator`. Takes a whole run, and copies the hit into it."""
        start = self._free_runs.popleft() * self.run_blocks
        copies = []
        sequence.tables = []
        for group, (pool, cached) in enumerate(zip(self.pools, hit.blocks, strict=True)):
            table = list(range(start, start + self.run_blocks))
            in_place = [source for source, target in zip(cached, table, strict=False) if source == target]
            kept = set(in_place)
            pool.touch(in_place)
            pool.claim([block for block in table if block not in kept])
            copies += [
                BlockCopy(group, source, target)
                for source, target in zip(cached, table, strict=False)
                if source not in (NO_BLOCK, target)
            ]
            sequence.tables.append(table)
        sequence.num_published = hit.num_tokens // self._config.block_size
        return copies

    def take_transfers(self) -> tuple[BlockTransfer, ...]:
        """See `Allocator`. There is no host tier."""
        return ()

    def expect(self, sequence: Sequence) -> None:
        """See `Allocator`."""

    def expect_no_more(self, sequence: Sequence) -> None:
        """See `Allocator`."""

    def can_grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """See `Allocator`."""
        return num_tokens <= self.run_blocks * self._config.block_size

    def grow(self, sequence: Sequence, num_tokens: int) -> list[Growth]:
        """See `Allocator`. The run is there already."""
        return []

    def publish(self, sequence: Sequence, num_tokens: int) -> list[bytes]:
        """See `Allocator`."""
        if not self._config.prefix_sharing:
            return []
        return kv.publish(self.pools, sequence, num_tokens, self._config.block_size)

    def release(self, sequence: Sequence, behind: int | None = None) -> None:
        """See `Allocator`. The only caller of `BlockPool.free`; a run is given back as a whole."""
        if behind is not None or not sequence.tables:
            return
        self._free_runs.append(sequence.tables[0][0] // self.run_blocks)
        for pool, group, table in zip(self.pools, self._config.groups, sequence.tables, strict=True):
            if self._config.prefix_sharing and not group.window:
                self._inherit(pool, sequence, table)
            pool.free(table)
        sequence.tables = []

    def _inherit(self, pool: BlockPool, sequence: Sequence, table: Blocks[int]) -> None:
        """Let copies be found whose originals were evicted meanwhile (in a window group a hit is not copied whole)."""
        for block, digest in zip(table[: sequence.num_published], sequence.digests, strict=False):
            pool.publish(block, digest)
