"""The sequences of a simulated engine that decode: counted, not visited, however many tokens they write.

Whether a sequence of n tokens needs a new block at step s depends on (n - s) mod block size alone, which never changes
while it decodes: a histogram of that number gives the blocks that any number of steps takes.
"""

from __future__ import annotations

import heapq

from .calibrate import Calibration
from .sequence import Sequence


class Decoding:
    """Every member has a token a step. `step` counts the engine's steps, `context` the tokens that members hold."""

    __slots__ = ("_calibration", "_ends", "_phases", "context", "members", "step")

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._ends: list[tuple[int, int, Sequence]] = []
        self._phases = [0] * calibration.block_size
        self.members: dict[int, Sequence] = {}
        """By their order."""
        self.context = 0
        self.step = 0

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, sequence: Sequence) -> bool:
        return self.members.get(sequence.order) is sequence

    def length(self, sequence: Sequence) -> int:
        """Return the tokens of a member that are in the cache."""
        return sequence.target + self.step - sequence.joined

    def join(self, sequence: Sequence) -> None:
        """Take in a sequence whose `target` is computed and which has more tokens to write."""
        sequence.joined = self.step
        sequence.phase = (sequence.target - self.step) % self._calibration.block_size
        sequence.ends_at = self.step + sequence.output - sequence.generated
        self.members[sequence.order] = sequence
        self._phases[sequence.phase] += 1
        self.context += sequence.target
        heapq.heappush(self._ends, (sequence.ends_at, sequence.order, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Let a member go, with its progress fixed in itself."""
        length = self.length(sequence)
        sequence.generated += self.step - sequence.joined
        sequence.blocks = self._calibration.blocks_for(length)
        sequence.computed = length
        self._phases[sequence.phase] -= 1
        self.context -= length
        del self.members[sequence.order]

    def advance(self, steps: int) -> None:
        """Go `steps` steps on."""
        self.step += steps
        self.context += steps * len(self.members)

    def needed(self, first: int, steps: int) -> int:
        """Return the new blocks that the steps `first … first + steps - 1` take."""
        size, phases = self._calibration.block_size, self._phases
        whole, rest = divmod(steps, size)
        return whole * len(self.members) + sum(phases[-step % size] for step in range(first, first + rest))

    def needs_block(self, sequence: Sequence) -> bool:
        """Say whether a member takes a block in the next step."""
        return sequence in self and sequence.phase == -self.step % self._calibration.block_size

    def steps_to_end(self) -> int:
        """Return in how many steps the next of the members, at least one, has written all."""
        while not self._is_current(self._ends[0]):
            heapq.heappop(self._ends)
        return self._ends[0][0] - self.step

    def pop_ended(self) -> Sequence | None:
        """Take out a member that has written all, None without any."""
        while self._ends and self._ends[0][0] <= self.step:
            entry = heapq.heappop(self._ends)
            if self._is_current(entry):
                self.leave(entry[2])
                return entry[2]
        return None

    def last(self) -> Sequence | None:
        """Return the latest arrival."""
        return self.members[max(self.members)] if self.members else None

    def check(self) -> None:
        """Raise AssertionError unless members, histogram and context agree."""
        assert sum(self._phases) == len(self.members), "the histogram has lost somebody"
        assert self.context == sum(map(self.length, self.members.values())), "the context is miscounted"

    def _is_current(self, entry: tuple[int, int, Sequence]) -> bool:
        # One that was preempted and joined again has another end.
        return entry[2] in self and entry[2].ends_at == entry[0]
