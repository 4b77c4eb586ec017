"""The block pool of a simulated engine: held, cached (least recently used first) and free blocks, by number.

The engine's own pool (`octavo_engine.core.block_pool`) names every block; here blocks that no other request can ever
find are counted in *runs*, so that a sequence costs a few operations however long it is:

    free (never to be found again) -> cached, oldest first: digest, digest, (run of sequence 7) x 12, digest ...
    ^ taken from here                 ^ then from here

Within a run the tail goes first, as the engine frees a table tail first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

Digest = Hashable


Run = tuple[int]
"""The key of the blocks that only one sequence can find: its own, after a preemption. No digest is a tuple of one."""


class Pool:
    """`total` blocks. What cannot be done is refused before anything changes."""

    __slots__ = ("_cached", "_held", "num_cached", "num_unnamed", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.num_unnamed = total
        """Free blocks without content."""
        self.num_cached = 0
        """Free blocks whose content can be found."""
        self._held: dict[Digest, int] = {}
        self._cached: OrderedDict[Digest, int] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks held by nobody, cached ones included."""
        return self.num_unnamed + self.num_cached

    @property
    def num_active(self) -> int:
        """Blocks held by at least one sequence."""
        return self.total - self.num_unnamed - self.num_cached

    def find(self, digests: Sequence[Digest], limit: int) -> int:
        """Return how many of the first `limit` digests are found in a row."""
        held, cached = self._held, self._cached
        count = min(limit, len(digests))
        for index in range(count):
            digest = digests[index]
            if digest not in held and digest not in cached:
                return index
        return count

    def run_length(self, run: Run) -> int:
        """Return how many blocks of a sequence's own run are still cached, from its head."""
        return self._cached.get(run, 0)

    def evictable(self, digests: Sequence[Digest], count: int) -> int:
        """Return how many of the first `count` (found) digests are held by nobody: touching them takes free blocks."""
        held = self._held
        return sum(digest not in held for digest in digests[:count])

    def touch(self, digests: Sequence[Digest], count: int) -> None:
        """Add one holder to each of the first `count` digests, all of them found."""
        held, cached = self._held, self._cached
        for digest in digests[:count]:
            if digest in held:
                held[digest] += 1
            else:
                del cached[digest]
                self.num_cached -= 1
                held[digest] = 1

    def take_run(self, run: Run, count: int) -> None:
        """Take the first `count` blocks of a cached run back."""
        if not count:
            return
        left = self._cached[run] - count
        if left:
            self._cached[run] = left
        else:
            del self._cached[run]
        self.num_cached -= count

    def take(self, count: int) -> None:
        """Take `count` blocks for new content: free ones first, then the oldest cached ones."""
        if count > self.num_unnamed + self.num_cached:
            raise ValueError(f"asked for {count} blocks of {self.num_free} free ones")
        unnamed = min(count, self.num_unnamed)
        self.num_unnamed -= unnamed
        count -= unnamed
        self.num_cached -= count
        cached = self._cached
        while count:
            key, size = cached.popitem(last=False)
            if size > count:
                cached[key] = size - count
                cached.move_to_end(key, last=False)
                return
            count -= size

    def publish(self, digest: Digest) -> bool:
        """Let a block that is held be found; False if there is one of this content already."""
        if digest in self._held or digest in self._cached:
            return False
        self._held[digest] = 1
        return True

    def release(self, digests: Sequence[Digest], run: Run, run_blocks: int, lost_blocks: int) -> None:
        """Give back a sequence's blocks: its named ones, its own full ones, and those nobody will find again."""
        self.num_unnamed += lost_blocks
        if run_blocks:
            # What is left of an older run is the same content's tail.
            self._cached[run] = self._cached.pop(run, 0) + run_blocks
            self.num_cached += run_blocks
        held = self._held
        for digest in reversed(digests):
            left = held[digest] - 1
            if left:
                held[digest] = left
            else:
                del held[digest]
                self._cached[digest] = 1
                self.num_cached += 1

    def check(self, held_by_sequences: int) -> None:
        """Raise AssertionError unless the counts agree; `held_by_sequences`: distinct blocks by the caller's count."""
        assert self.num_cached == sum(self._cached.values()), "the cached blocks are miscounted"
        assert 0 <= self.num_unnamed <= self.total - self.num_cached, "more blocks are free than there are"
        assert self.num_active == held_by_sequences, f"{self.num_active} blocks active, {held_by_sequences} held"
        assert not self._held.keys() & self._cached.keys(), "a block is held and cached at once"

    @property
    def num_named_held(self) -> int:
        """Distinct named blocks that are held."""
        return len(self._held)
