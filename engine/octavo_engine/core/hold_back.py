"""Identical cold prompts compute once: who computes which block, and who waits for it.

A running sequence leads the blocks it is going to publish. A waiting one whose next missing block has a leader is held
back until the last block they share is published, or the leader goes away without publishing it.
"""

from __future__ import annotations

from collections.abc import Sequence as Digests

from octavo_engine.core.sequence import Sequence


class HoldBack:
    """Leaders by digest, and followers by the digest they wait for. All costs are per block, once."""

    def __init__(self) -> None:
        self._leaders: dict[bytes, int] = {}
        self._led: dict[int, list[bytes]] = {}
        self._followers: dict[bytes, list[Sequence]] = {}
        self._waits_for: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._leaders) + len(self._waits_for)

    def awaited(self, digests: Digests[bytes], first: int) -> bytes | None:
        """Return the last digest of `digests[first:]` computed by the leader of `digests[first]`, None without one."""
        leader = self._leaders.get(digests[first]) if first < len(digests) else None
        if leader is None:
            return None
        last = digests[first]
        for digest in digests[first + 1 :]:
            if self._leaders.get(digest) != leader:
                break
            last = digest
        return last

    def lead(self, sequence: Sequence, digests: Digests[bytes]) -> None:
        """Note that `sequence` will publish `digests`, unless another one does already."""
        led = [digest for digest in digests if self._leaders.setdefault(digest, sequence.id) == sequence.id]
        if led:
            self._led[sequence.id] = led

    def follow(self, sequence: Sequence, digest: bytes) -> None:
        """Hold `sequence` back until `digest` is published or has lost its leader."""
        self._followers.setdefault(digest, []).append(sequence)
        self._waits_for[sequence.id] = digest

    def published(self, digests: Digests[bytes]) -> list[Sequence]:
        """Return the followers that published digests set free."""
        freed: list[Sequence] = []
        for digest in digests:
            if self._leaders.pop(digest, None) is not None:
                freed += self._set_free(digest)
        return freed

    def withdraw(self, sequence: Sequence) -> list[Sequence]:
        """Forget `sequence`, leader or follower; return the followers that lost their leader."""
        freed: list[Sequence] = []
        for digest in self._led.pop(sequence.id, ()):
            if self._leaders.get(digest) == sequence.id:
                del self._leaders[digest]
                freed += self._set_free(digest)
        digest_awaited = self._waits_for.pop(sequence.id, None)
        if digest_awaited is not None:
            self._followers[digest_awaited].remove(sequence)
            if not self._followers[digest_awaited]:
                del self._followers[digest_awaited]
        return freed

    def _set_free(self, digest: bytes) -> list[Sequence]:
        followers = self._followers.pop(digest, [])
        for follower in followers:
            del self._waits_for[follower.id]
        return followers
