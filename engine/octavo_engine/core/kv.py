"""KV groups: what a sequence holds in the cache, and the protocol of the two ways to allocate it.

A sequence has one block table per group. Groups share nothing but the digests: a prefix is a hit only as far as every
group can serve it, and a group with an attention window can serve it with the window's blocks alone.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Blocks
from typing import NamedTuple, Protocol

from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.config import CacheGroup
from octavo_engine.core.host_tier import HostTier
from octavo_engine.core.sequence import Sequence
from octavo_engine.core.step import BlockCopy, BlockTransfer

NO_BLOCK = -1
"""In a block table: freed behind the window, or not needed by a hit."""
IN_HOST_TIER = -2
"""In a hit: found in host memory, to be loaded into a block of the cache."""

Find = Callable[[bytes], int]
"""Where one group has what a digest names: a block, IN_HOST_TIER, or NO_BLOCK."""


class Hit(NamedTuple):
    """A cached prefix: its length in tokens, and per group the blocks that hold it.

    NO_BLOCK behind a window, IN_HOST_TIER for what must be loaded first.
    """

    num_tokens: int
    blocks: tuple[tuple[int, ...], ...]


class Growth(NamedTuple):
    """Blocks appended to one group's table, from index `first` on."""

    group: int
    first: int
    blocks: tuple[int, ...]


class Allocator(Protocol):
    """Who holds which block. `can_x` says whether `x` will succeed; `x` assumes that it was asked."""

    pools: tuple[BlockPool, ...]
    tiers: tuple[HostTier, ...]
    """One per group, or none."""

    def find_hit(self, sequence: Sequence) -> Hit:
        """Return the longest cached prefix of `sequence` that leaves at least one token to compute."""
        ...

    def can_admit(self, sequence: Sequence, hit: Hit, num_tokens: int, headroom: Blocks[int]) -> bool:
        """Say whether `num_tokens` would fit as a whole and leave `headroom[g]` blocks of each group free."""
        ...

    def admit(self, sequence: Sequence, hit: Hit, num_tokens: int) -> list[BlockCopy]:
        """Give `sequence` its tables for the first `num_tokens`, hit included; return the copies the hit needs."""
        ...

    def take_transfers(self) -> tuple[BlockTransfer, ...]:
        """Return what must move between the cache and host memory before the step being planned, once."""
        ...

    def expect(self, sequence: Sequence) -> None:
        """`sequence` waits: what it will find in host memory had better stay there."""
        ...

    def expect_no_more(self, sequence: Sequence) -> None:
        """`sequence` has found what it waited for, or waits no more."""
        ...

    def can_grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Say whether the tables of `sequence` can be extended to `num_tokens`."""
        ...

    def grow(self, sequence: Sequence, num_tokens: int) -> list[Growth]:
        """Extend the tables of `sequence` to `num_tokens`."""
        ...

    def publish(self, sequence: Sequence, num_tokens: int) -> list[bytes]:
        """Publish the full blocks among the first `num_tokens`, all computed; return the digests, new ones only."""
        ...

    def release(self, sequence: Sequence, behind: int | None = None) -> None:
        """Give back every block, or with `behind` those that no position from `behind` on can see. Idempotent."""
        ...


def first_visible(window: int, position: int, block_size: int) -> int:
    """Return the index of the first block that `position` and later ones attend to in a group of this window."""
    return max(0, position - window + 1) // block_size if window else 0


def shareable_blocks(sequence: Sequence, block_size: int) -> int:
    """Return how many leading blocks a hit may cover, so that at least one token is left to compute."""
    return (len(sequence.tokens) - 1) // block_size


def find_hit(
    finds: Blocks[Find], groups: Blocks[CacheGroup], digests: Blocks[bytes], limit: int, block_size: int
) -> Hit:
    """Return the longest prefix of at most `limit` blocks that every group can serve, by each group's `Find`.

    Groups of full attention need every block of it: the first one missing ends the prefix. A window group needs the
    blocks its window sees from the prefix's end: a missing one moves the end before it, until all agree.
    """
    count = limit
    for find, group in zip(finds, groups, strict=True):
        if not group.window:
            count = next((index for index in range(count) if find(digests[index]) == NO_BLOCK), count)
    windows = [(find, group.window) for find, group in zip(finds, groups, strict=True) if group.window]
    settled = False
    while not settled:
        settled = True
        for find, window in windows:
            first = first_visible(window, count * block_size, block_size)
            seen = range(count - 1, first - 1, -1)
            missing = next((index for index in seen if find(digests[index]) == NO_BLOCK), None)
            if missing is not None:
                count, settled = missing, False
    blocks = []
    for find, group in zip(finds, groups, strict=True):
        first = min(count, first_visible(group.window, count * block_size, block_size))
        blocks.append((*([NO_BLOCK] * first), *map(find, digests[first:count])))
    return Hit(count * block_size, tuple(blocks))


def publish(pools: Blocks[BlockPool], sequence: Sequence, num_tokens: int, block_size: int) -> list[bytes]:
    """Publish in every group the blocks that are full and computed and not yet published."""
    full = num_tokens // block_size
    if full <= sequence.num_published:
        return []
    digests = sequence.name_blocks(full, block_size)
    new = digests[sequence.num_published : full]
    for pool, table in zip(pools, sequence.tables, strict=True):
        for block, digest in zip(table[sequence.num_published : full], new, strict=True):
            if block != NO_BLOCK:
                pool.publish(block, digest)
    sequence.num_published = full
    return new
