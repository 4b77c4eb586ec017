"""The host tier: cached blocks that the KV cache evicts stay findable in host memory, one tier per KV group.

    KV cache --- evicted, findable ---> host tier      (a save)
    KV cache <-- found by a prefix ---- host tier      (a load)

The tiers exclude each other: what was loaded is given up before anything else, so that the two together hold nearly as
many prefixes as they have blocks. Until it is, an eviction of the same content costs nothing.

The queue is a view of the future. What a waiting sequence will ask for is given up last, and of such blocks those first
that are asked for last (Belady, "A study of replacement algorithms for a virtual-storage computer", 1966, as far as the
queue reaches); the rest goes in the order it was saved in. Which content moves where is decided here, in order; the
runner moves it in that order, before the step computes.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

NOWHERE = -1

Turn = tuple[int, float, int]
"""A waiting sequence's place in the queue (priority, arrival, id): the smaller, the sooner."""

_MIN_STALE: Final = 64


class HostTier:
    """Places `0 … num_places - 1` of one block each."""

    def __init__(self, num_places: int) -> None:
        """Begin with empty places."""
        if num_places < 1:
            raise ValueError(f"a host tier needs at least one place, not {num_places}")
        self.num_places = num_places
        self.saved_blocks = 0
        self.loaded_blocks = 0
        self._empty = list(range(num_places - 1, -1, -1))
        self._others: OrderedDict[bytes, int] = OrderedDict()
        """Nobody waits for these; the first is given up first."""
        self._awaited: dict[bytes, int] = {}
        self._held: dict[bytes, int] = {}
        self._turns: dict[bytes, list[Turn]] = {}
        """Who waits for a block, wherever it is, the first to come first."""
        self._furthest: list[tuple[Turn, bytes]] = []
        """A heap of the awaited by their first turn, negated; entries that are true no more stay until they are met."""

    @property
    def num_used(self) -> int:
        """Places whose content can be found."""
        return self.num_places - len(self._empty)

    def find(self, digest: bytes) -> int:
        """Return the place that holds `digest`, or NOWHERE."""
        for places in (self._others, self._awaited, self._held):
            if digest in places:
                return places[digest]
        return NOWHERE

    def save(self, digest: bytes) -> int:
        """Return the place to write an evicted block to; NOWHERE if it is there, or if what is there is worth more."""
        if self.find(digest) != NOWHERE:
            if digest in self._others:
                self._others.move_to_end(digest)
            return NOWHERE
        place = self._make_room(digest)
        if place != NOWHERE:
            self._put(digest, place)
            self.saved_blocks += 1
        return place

    def hold(self, digests: Sequence[bytes]) -> list[int]:
        """Return the places of blocks that are about to be loaded; nothing overwrites them before `loaded`."""
        for digest in digests:
            places = self._awaited if digest in self._awaited else self._others
            self._held[digest] = places.pop(digest)
        return [self._held[digest] for digest in digests]

    def loaded(self, digests: Sequence[bytes]) -> None:
        """Let go of what `hold` held: unless awaited, it is the first to be given up, the last one named before all."""
        for digest in digests:
            self._put(digest, self._held.pop(digest))
            if digest in self._others:
                self._others.move_to_end(digest, last=False)
        self.loaded_blocks += len(digests)

    def expect(self, digests: Iterable[bytes], turn: Turn) -> None:
        """A sequence that waits for its `turn` will ask for these."""
        for digest in digests:
            turns = self._turns.setdefault(digest, [])
            insort(turns, turn)
            if digest in self._others:
                self._put(digest, self._others.pop(digest))
            elif digest in self._awaited and turns[0] == turn:
                self._rank(digest)

    def expect_no_more(self, digests: Iterable[bytes], turn: Turn) -> None:
        """The sequence that waited for its `turn` does not wait any more."""
        for digest in digests:
            turns = self._turns[digest]
            first = turns[0]
            turns.remove(turn)
            if not turns:
                del self._turns[digest]
                if digest in self._awaited:
                    self._others[digest] = self._awaited.pop(digest)
            elif turns[0] != first and digest in self._awaited:
                self._rank(digest)

    def check(self) -> None:
        """Raise AssertionError unless every place has one use, and nobody is expected or held."""
        used = [*self._others.values(), *self._awaited.values(), *self._held.values(), *self._empty]
        assert sorted(used) == list(range(self.num_places)), "a place is lost or used twice"
        assert not self._held, f"{len(self._held)} places are still held"
        assert not self._turns, f"{len(self._turns)} blocks are expected by nobody"
        assert not self._awaited, f"{len(self._awaited)} blocks are kept for nobody"

    def _put(self, digest: bytes, place: int) -> None:
        if digest in self._turns:
            self._awaited[digest] = place
            self._rank(digest)
        else:
            self._others[digest] = place

    def _rank(self, digest: bytes) -> None:
        heapq.heappush(self._furthest, (_negated(self._turns[digest][0]), digest))
        if len(self._furthest) > 2 * len(self._awaited) + _MIN_STALE:
            self._furthest = [(_negated(self._turns[one][0]), one) for one in self._awaited]
            heapq.heapify(self._furthest)

    def _make_room(self, digest: bytes) -> int:
        """Return a place for `digest`: what is asked for sooner, or at all, never goes for what is not."""
        if self._empty:
            return self._empty.pop()
        if self._others:
            return self._others.popitem(last=False)[1]
        turns = self._turns.get(digest)
        while turns and self._furthest:
            rank, victim = self._furthest[0]
            if victim in self._awaited and rank == _negated(self._turns[victim][0]):
                return self._give_up(victim) if turns[0] < self._turns[victim][0] else NOWHERE
            heapq.heappop(self._furthest)
        return NOWHERE

    def _give_up(self, digest: bytes) -> int:
        heapq.heappop(self._furthest)
        return self._awaited.pop(digest)


def _negated(turn: Turn) -> Turn:
    return -turn[0], -turn[1], -turn[2]
