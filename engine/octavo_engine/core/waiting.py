"""The waiting queue: ordered by (priority, arrival); blocked sequences are skipped, not waited for."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from operator import attrgetter

from octavo_engine.core.config import BlockReason
from octavo_engine.core.sequence import Sequence

_key = attrgetter("key")


class WaitingQueue:
    """Sequences waiting for a first or a resumed step. Blocked ones cost nothing per step, and count as waiting.

    `num_tokens` is what the waiting sequences have to be computed again or for the first time: for one that never ran
    its prompt, for a preempted one also what it had generated.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._ready: list[Sequence] = []
        self._blocked: dict[int, tuple[Sequence, BlockReason]] = {}
        self._sizes: dict[int, int] = {}
        self._arrivals: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self._sizes

    def add(self, sequence: Sequence, blocked: BlockReason | None = None) -> None:
        """Add a sequence, at its place by key."""
        self._sizes[sequence.id] = len(sequence.tokens)
        self.num_tokens += len(sequence.tokens)
        heapq.heappush(self._arrivals, (sequence.arrival, sequence.id))
        if blocked is None:
            insort(self._ready, sequence, key=_key)
        else:
            self._blocked[sequence.id] = (sequence, blocked)

    def first(self) -> Sequence | None:
        """Return the first sequence that is not blocked."""
        return self._ready[0] if self._ready else None

    def block(self, sequence: Sequence, reason: BlockReason) -> None:
        """Skip `sequence` until `unblock`."""
        self._leave_ready(sequence)
        self._blocked[sequence.id] = (sequence, reason)

    def unblock(self, sequence: Sequence) -> None:
        """Let `sequence` take its place by key again; one that is not blocked stays where it is."""
        if self._blocked.pop(sequence.id, None) is not None:
            insort(self._ready, sequence, key=_key)

    def reason(self, sequence: Sequence) -> BlockReason | None:
        """Say why `sequence` is blocked, if it is."""
        entry = self._blocked.get(sequence.id)
        return entry[1] if entry else None

    def remove(self, sequence: Sequence) -> None:
        """Take `sequence` out, blocked or not."""
        if self._blocked.pop(sequence.id, None) is None:
            self._leave_ready(sequence)
        self.num_tokens -= self._sizes.pop(sequence.id)

    def oldest_arrival(self) -> float | None:
        """Return the earliest arrival among all that wait."""
        while self._arrivals and self._arrivals[0][1] not in self._sizes:
            heapq.heappop(self._arrivals)
        return self._arrivals[0][0] if self._arrivals else None

    def _leave_ready(self, sequence: Sequence) -> None:
        place = bisect_left(self._ready, sequence.key, key=_key)
        if place == len(self._ready) or self._ready[place] is not sequence:
            raise ValueError(f"sequence {sequence.id} is not in the queue")
        del self._ready[place]
