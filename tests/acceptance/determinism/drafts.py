"""Drafts that come true now and then, whatever they cost: the continuation known from before, with errors put in."""

from __future__ import annotations

import random
from collections.abc import Sequence

WRONG_SHARE = 0.25


class Oracle:
    """`DraftSource` that knows how each sequence goes on."""

    def __init__(self, prompts: Sequence[int], answers: Sequence[Sequence[int]], seed: int) -> None:
        """Sequence i has a prompt of `prompts[i]` tokens and is going to write `answers[i]`."""
        self._prompts = prompts
        self._answers = answers
        self._draw = random.Random(seed)

    def worthwhile(self, running: int) -> bool:
        """Always."""
        return True

    def propose(self, sequence: int, tokens: Sequence[int], room: int, planned: int, running: int) -> Sequence[int]:
        """Return some of what follows; each token may be exchanged for another one of the same text."""
        written = len(tokens) - self._prompts[sequence]
        answer = self._answers[sequence]
        drafts = answer[written : written + self._draw.randint(0, room)]
        return [self._draw.choice(answer) if self._draw.random() < WRONG_SHARE else token for token in drafts]

    def measured(self, tokens: int, drafted: int, seconds: float) -> None:
        """Nothing is weighed."""

    def forget(self, sequence: int) -> None:
        """Nothing is kept."""
