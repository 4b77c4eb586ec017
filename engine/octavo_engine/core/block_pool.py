"""The pool of one KV group's blocks: reference counts, the free list, and the prefix cache.

Struct of arrays, no object per block. The free list is intrusive and doubly linked, so a block leaves its middle in
O(1), and it doubles as the LRU of the cached blocks:

    sentinel -> [free, never to be found again] -> [cached, oldest first] ... -> sentinel
                 ^ taken from here                                      freed cached blocks end here ^

A block keeps its digest while it is free, until it is taken for something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """Blocks `0 … num_blocks - 1`. Every method checks before it changes: a refused call leaves no trace."""

    def __init__(self, num_blocks: int, on_evict: Callable[[int, bytes], None] | None = None) -> None:
        """`on_evict` is told (block, digest) of content that will be overwritten and could have been found."""
        if num_blocks < 1:
            raise ValueError(f"a block pool needs at least one block, not {num_blocks}; give the KV cache more memory")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        """Blocks held by nobody, cached ones included."""
        self.num_cached = 0
        """Blocks held by nobody whose content can still be found."""
        self._on_evict = on_evict
        self._references = [0] * num_blocks
        self._digests: list[bytes | None] = [None] * num_blocks
        self._by_digest: dict[bytes, int] = {}
        # Index num_blocks is the sentinel that closes the ring.
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]

    @property
    def num_active(self) -> int:
        """Blocks held by at least one sequence."""
        return self.num_blocks - self.num_free

    def references(self, block: int) -> int:
        """Return how many sequences hold `block`."""
        return self._references[block]

    def find(self, digest: bytes) -> int:
        """Return the block published under `digest`, or -1."""
        return self._by_digest.get(digest, -1)

    def can_take(self, count: int, touching: Iterable[int] = ()) -> bool:
        """Say whether `touch(touching)` and `take(count)` would both succeed."""
        for block in touching:
            count += not self._references[block]
        return count <= self.num_free

    def take(self, count: int) -> list[int]:
        """Take `count` blocks from the head of the free list, each for one holder; their old content is forgotten."""
        if count > self.num_free:
            raise ValueError(f"asked for {count} blocks of {self.num_free} free ones")
        blocks = []
        block = self._next[self.num_blocks]
        for _ in range(count):
            blocks.append(block)
            block = self._next[block]
        self.claim(blocks)
        return blocks

    def claim(self, blocks: Sequence[int]) -> None:
        """Take these very blocks, each free, each for one holder; their old content is forgotten."""
        self._check_free(blocks)
        for block in blocks:
            self._unlink(block)
            self._forget(block)
            self._references[block] = 1

    def touch(self, blocks: Sequence[int]) -> None:
        """Add one holder to each block; free ones leave the free list with their content."""
        for block in blocks:
            if not self._references[block]:
                self._unlink(block)
            self._references[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Take one holder off each block of a table, in the table's order.

        The tail is freed first, so that it is also the first to be evicted; blocks without a digest go to the head.
        """
        for block in blocks:
            if not self._references[block]:
                raise ValueError(f"block {block} is freed twice")
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._link(block, at_tail=self._digests[block] is not None)

    def publish(self, block: int, digest: bytes) -> None:
        """Let a full, computed block be found under `digest`. The first block published under a digest keeps it."""
        if not self._references[block]:
            raise ValueError(f"block {block} is published but held by nobody")
        if self._digests[block] not in (None, digest):
            raise ValueError(f"block {block} is published twice with different content")
        if self._by_digest.setdefault(digest, block) == block:
            self._digests[block] = digest

    def check(self) -> None:
        """Raise AssertionError unless list, counts and map agree."""
        free = []
        block = self._next[self.num_blocks]
        while block != self.num_blocks:
            free.append(block)
            assert len(free) <= self.num_blocks, "the free list runs in a circle"
            assert self._previous[self._next[block]] == block, f"block {block} is badly linked"
            block = self._next[block]
        assert len(free) == len(set(free)) == self.num_free, f"{len(free)} blocks listed, {self.num_free} counted"
        assert all(not self._references[block] for block in free), "a held block is in the free list"
        assert all(count >= 0 for count in self._references), "a reference count is negative"
        assert self._references.count(0) == self.num_free, "a free block is missing from the free list"
        assert self.num_cached == sum(1 for block in free if self._digests[block] is not None), "cached count is wrong"
        named = {digest: block for block, digest in enumerate(self._digests) if digest is not None}
        assert named == self._by_digest, "digests and map disagree"

    def _check_free(self, blocks: Sequence[int]) -> None:
        if len(set(blocks)) != len(blocks):
            raise ValueError("a block is asked for twice")
        for block in blocks:
            if self._references[block]:
                raise ValueError(f"block {block} is held by somebody")

    def _forget(self, block: int) -> None:
        digest = self._digests[block]
        if digest is not None:
            del self._by_digest[digest]
            self._digests[block] = None
            if self._on_evict is not None:
                self._on_evict(block, digest)

    def _unlink(self, block: int) -> None:
        previous, following = self._previous[block], self._next[block]
        self._next[previous] = following
        self._previous[following] = previous
        self.num_free -= 1
        self.num_cached -= self._digests[block] is not None

    def _link(self, block: int, at_tail: bool) -> None:
        sentinel = self.num_blocks
        previous = self._previous[sentinel] if at_tail else sentinel
        following = self._next[previous]
        self._previous[block], self._next[block] = previous, following
        self._next[previous] = self._previous[following] = block
        self.num_free += 1
        self.num_cached += self._digests[block] is not None
