"""The host tier: cached blocks that the KV cache evicts stay findable in host memory, one tier per KV group.

    KV cache --- evicted, findable ---> host tier      (a save)
    KV cache <-- found by a prefix ---- host tier      (a load)

The tiers exclude each other: what was loaded is given up before anything else, so that the two together hold nearly as
many prefixes as they have blocks. Until it is, an eviction of the same content costs nothing.

The queue is a view of the future: what a waiting sequence will ask for is given up last (Belady, "A study of
replacement algorithms for a virtual-storage computer", 1966, as far as the queue reaches), the rest in the order it
was saved in. Which content moves where is decided here, in order; the runner moves it in that order, before the step
computes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

NOWHERE = -1

_Places = OrderedDict[bytes, int]
"""Digest -> place, the first to be given up first."""


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
        self._others: _Places = OrderedDict()
        self._awaited: _Places = OrderedDict()
        self._held: dict[bytes, int] = {}
        self._waiting: Counter[bytes] = Counter()
        """How many waiting sequences will ask for each."""

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
        """Return the place to write an evicted block to; NOWHERE if it is there, or if no place may be given up."""
        places = self._list_of(digest)
        if self.find(digest) != NOWHERE:
            if digest in places:
                places.move_to_end(digest)
            return NOWHERE
        place = self._make_room(awaited=places is self._awaited)
        if place != NOWHERE:
            places[digest] = place
            self.saved_blocks += 1
        return place

    def hold(self, digests: Sequence[bytes]) -> list[int]:
        """Return the places of blocks that are about to be loaded; nothing overwrites them before `loaded`."""
        for digest in digests:
            self._held[digest] = self._list_of(digest).pop(digest)
        return [self._held[digest] for digest in digests]

    def loaded(self, digests: Sequence[bytes]) -> None:
        """Let go of what `hold` held: of its kind it is the first to be given up, the last one named before others."""
        for digest in digests:
            places = self._list_of(digest)
            places[digest] = self._held.pop(digest)
            places.move_to_end(digest, last=False)
        self.loaded_blocks += len(digests)

    def expect(self, digests: Iterable[bytes]) -> None:
        """A waiting sequence will ask for these."""
        for digest in digests:
            self._waiting[digest] += 1
            if digest in self._others:
                self._awaited[digest] = self._others.pop(digest)

    def expect_no_more(self, digests: Iterable[bytes]) -> None:
        """The sequence that was to ask for these does not wait any more."""
        for digest in digests:
            self._waiting[digest] -= 1
            if not self._waiting[digest]:
                del self._waiting[digest]
                if digest in self._awaited:
                    self._others[digest] = self._awaited.pop(digest)

    def check(self) -> None:
        """Raise AssertionError unless every place has one use, and nobody is expected or held."""
        used = [*self._others.values(), *self._awaited.values(), *self._held.values(), *self._empty]
        assert sorted(used) == list(range(self.num_places)), "a place is lost or used twice"
        assert not self._held, f"{len(self._held)} places are still held"
        assert not self._waiting, f"{len(self._waiting)} blocks are expected by nobody"
        assert not self._awaited, f"{len(self._awaited)} blocks are kept for nobody"

    def _list_of(self, digest: bytes) -> _Places:
        return self._awaited if digest in self._waiting else self._others

    def _make_room(self, awaited: bool) -> int:
        """Return a place to overwrite. What nobody waits for never takes the place of what somebody does."""
        if self._empty:
            return self._empty.pop()
        for places in (self._others, self._awaited) if awaited else (self._others,):
            if places:
                return places.popitem(last=False)[1]
        return NOWHERE
