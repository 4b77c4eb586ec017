"""Requests that wait for a replica: at zero, in a rollout at one replica, after a crash. Bounded in every direction."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from octavo_engine import contract

from . import refusal
from .refusal import Refusal

HELD_BYTES: Final = 8 * contract.MAX_BODY_BYTES
"""Bodies that one service may hold in one picker: eight of the largest, or thousands of usual ones."""


@dataclass(frozen=True, slots=True)
class HoldBounds:
    """`max_requests` 0 holds nobody: a service that would rather refuse at once."""

    max_requests: int = 256
    timeout_seconds: float = 600.0
    max_bytes: int = HELD_BYTES


class Held(NamedTuple):
    """A waiting request: since when, how large its body is, and the KV blocks that its prompt will need."""

    since: float
    size: int
    blocks: int


class Hold:
    """The waiting requests of one service in one picker, first come first served. Times are the picker's seconds."""

    def __init__(self, bounds: HoldBounds | None = None) -> None:
        """Start with nobody waiting."""
        self.bounds = bounds or HoldBounds()
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._held)

    @property
    def blocks(self) -> int:
        """Return the KV blocks that all of them will need: what `/wake` and `/held` tell the operator."""
        return sum(held.blocks for held in self._held.values())

    @property
    def bytes(self) -> int:
        """Return the bytes of their bodies."""
        return self._bytes

    def oldest_seconds(self, now: float) -> float:
        """Return how long the first has waited, 0 if nobody waits."""
        return next((now - held.since for held in self._held.values()), 0.0)

    def offer(self, request_id: str, now: float, size: int, blocks: int) -> Refusal | None:
        """Let a request wait, or refuse it; one that waits already is left where it is.

        A body that is larger than all that may be held waits if nobody else does: it could never wait otherwise.
        """
        if request_id in self._held:
            return None
        full = len(self._held) >= self.bounds.max_requests
        if full or (self._held and self._bytes + size > self.bounds.max_bytes):
            return refusal.hold_full(len(self._held)) if self.bounds.max_requests else refusal.no_replica()
        self._held[request_id] = Held(now, size, blocks)
        self._bytes += size
        return None

    def first(self) -> str | None:
        """Return the id of the request whose turn is next."""
        return next(iter(self._held), None)

    def leave(self, request_id: str) -> Held | None:
        """Take a request out: it was sent on, or its client left. None if it does not wait."""
        held = self._held.pop(request_id, None)
        if held is not None:
            self._bytes -= held.size
        return held

    def expire(self, now: float) -> list[tuple[str, Refusal]]:
        """Take out those whose time is up, each with its answer."""
        out = []
        for request_id, held in list(self._held.items()):
            if now - held.since < self.bounds.timeout_seconds:
                break
            self.leave(request_id)
            out.append((request_id, refusal.held_too_long(self.bounds.timeout_seconds)))
        return out
