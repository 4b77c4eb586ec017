"""Routing policies that know no prefixes: the fewest requests, by turns, and plain hashing.

They are offered as `routing.policy`, and they are what `PrefixAware` is judged against (tests/acceptance).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from zlib import crc32

from .types import Candidate, Ranking, Wanted

FORESIGHT: Final = 0.5
"""What an endpoint will soon have weighs as much as what it has now: of two equals, the one about to be free."""


def blended_load(candidate: Candidate) -> float:
    """Return the load of an endpoint in requests, between what it has now and what it is expected to have soon."""
    return (1.0 - FORESIGHT) * candidate.load + FORESIGHT * candidate.soon


def tie(wanted: Wanted, uid: str) -> int:
    """Return the order of equals: differs by request, so that two pickers with the same news choose differently."""
    return crc32(uid.encode(), crc32(wanted.request_id.encode()))


def affinity(key: bytes, uid: str) -> bytes:
    """Return how much a conversation is an endpoint's: the largest wins (highest random weight)."""
    return blake2b(key, key=uid.encode()[:64], digest_size=8).digest()


class LeastLoad:
    """The endpoint with the fewest requests."""

    def rank(self, wanted: Wanted, candidates: tuple[Candidate, ...]) -> Ranking:
        """Order by load; equals in an order that differs by request."""
        order = sorted(candidates, key=lambda c: (blended_load(c), tie(wanted, c.uid)))
        return Ranking(tuple(c.uid for c in order), "LeastLoad")

    def sent(self, wanted: Wanted, to: Candidate) -> None:
        """Learn nothing: the fleet counts."""

    def forget(self, uid: str) -> None:
        """Forget nothing."""


class RoundRobin:
    """The endpoint whose last turn is the longest ago; a new one is next."""

    def __init__(self) -> None:
        """Start with nobody's turn."""
        self._turn = 0
        self._last: dict[str, int] = {}

    def rank(self, wanted: Wanted, candidates: tuple[Candidate, ...]) -> Ranking:
        """Order by the last turn."""
        order = sorted(candidates, key=lambda c: (self._last.get(c.uid, 0), c.uid))
        return Ranking(tuple(c.uid for c in order), "RoundRobin")

    def sent(self, wanted: Wanted, to: Candidate) -> None:
        """Note the turn that was taken."""
        self._turn += 1
        self._last[to.uid] = self._turn

    def forget(self, uid: str) -> None:
        """Drop an endpoint's turn."""
        self._last.pop(uid, None)


class Consistent:
    """Plain hashing: a conversation stays with its endpoint, whatever the load (highest random weight).

    When an endpoint comes or goes, only the conversations that it gets or had move.
    """

    def rank(self, wanted: Wanted, candidates: tuple[Candidate, ...]) -> Ranking:
        """Order by the hash of conversation and endpoint."""
        order = sorted(candidates, key=lambda c: affinity(wanted.key, c.uid), reverse=True)
        return Ranking(tuple(c.uid for c in order), "Consistent")

    def sent(self, wanted: Wanted, to: Candidate) -> None:
        """Learn nothing."""

    def forget(self, uid: str) -> None:
        """Forget nothing."""
