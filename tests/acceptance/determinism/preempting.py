"""A scheduler that preempts every sequence, at moments it draws, at least three times."""

from __future__ import annotations

import random
from collections.abc import Sequence as Numbers

from octavo_engine.core.config import SchedulerConfig
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.sequence import Sequence
from octavo_engine.core.speculation import DraftSource
from octavo_engine.core.step import StepPlan

LEAST, MOST = 3, 6
CHANCE = 0.25


class PreemptingScheduler(Scheduler):
    """Between two steps it sends running sequences back to the queue.

    Sequence i is going to write `lengths[i]` tokens. It is preempted by chance, and for certain where no more moments
    are left than preemptions are missing. With several plans in flight, or drafts, moments pass unseen: there the
    number is what chance makes it.
    """

    def __init__(self, config: SchedulerConfig, drafts: DraftSource | None, lengths: Numbers[int], seed: int) -> None:
        super().__init__(config, drafts)
        self._lengths = lengths
        self._draw = random.Random(seed)
        self.counts = [0] * len(lengths)

    def schedule(self) -> StepPlan | None:
        """Preempt, then plan."""
        for sequence in list(self.running):
            if self._due(sequence) and self.preempt(sequence.id):
                self.counts[sequence.id] += 1
        return super().schedule()

    def _due(self, sequence: Sequence) -> bool:
        missing = LEAST - self.counts[sequence.id]
        left = self._lengths[sequence.id] - sequence.num_generated
        if sequence.num_generated and left <= missing:
            return missing > 0
        return self.counts[sequence.id] < MOST and self._draw.random() < CHANCE
