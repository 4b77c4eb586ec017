"""Identical cold prompts compute once, as in `octavo_engine.core.hold_back`: who computes a block, who waits for it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many

from .pool import Digest
from .sequence import Sequence


class HoldBack:
    """Leaders by digest, followers by the digest they wait for."""

    def __init__(self) -> None:
        self.followers: dict[int, Sequence] = {}
        """By their order: they wait, and are not looked at."""
        self._leaders: dict[Digest, int] = {}
        self._led: dict[int, list[Digest]] = {}
        self._awaiting: dict[Digest, list[Sequence]] = {}

    def awaited(self, digests: Many[Digest], first: int, limit: int) -> Digest | None:
        """Return the last digest from `first` on that the leader of the first missing one computes; None without one.

        Only blocks below `limit` count: the last token of a prompt is never shared.
        """
        end = min(limit, len(digests))
        if first >= end or not self._leaders:
            return None
        leader = self._leaders.get(digests[first])
        if leader is None:
            return None
        last = digests[first]
        for digest in digests[first + 1 : end]:
            if self._leaders.get(digest) != leader:
                break
            last = digest
        return last

    def lead(self, sequence: Sequence, first: int, limit: int) -> None:
        """Note that `sequence` will publish its digests from `first` on, unless another one does already."""
        order = sequence.order
        led = [d for d in sequence.digests[first:limit] if self._leaders.setdefault(d, order) == order]
        if led:
            self._led[order] = led

    def follow(self, sequence: Sequence, digest: Digest) -> None:
        """Hold `sequence` back until `digest` is published or has lost its leader."""
        self.followers[sequence.order] = sequence
        self._awaiting.setdefault(digest, []).append(sequence)

    def published(self, digests: Iterable[Digest]) -> list[Sequence]:
        """Return the followers that published digests set free."""
        freed: list[Sequence] = []
        for digest in digests:
            if self._leaders.pop(digest, None) is not None:
                freed += self._set_free(digest)
        return freed

    def withdraw(self, sequence: Sequence) -> list[Sequence]:
        """Forget a leader; return the followers that lost it."""
        freed: list[Sequence] = []
        for digest in self._led.pop(sequence.order, ()):
            if self._leaders.get(digest) == sequence.order:
                del self._leaders[digest]
                freed += self._set_free(digest)
        return freed

    def _set_free(self, digest: Digest) -> list[Sequence]:
        freed = self._awaiting.pop(digest, [])
        for sequence in freed:
            del self.followers[sequence.order]
        return freed
