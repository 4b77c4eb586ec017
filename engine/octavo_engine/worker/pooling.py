"""A prompt's embedding in the making: its final hidden states pooled while the prompt is computed, chunk by chunk.

Token by token in float64: where the chunks end changes no bit. What was gathered belongs to a slot and goes with it, so
a preempted prompt begins again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # a runner on a GPU imports this beside numpy and torch alone
    from octavo_engine.model.pooling import Kind


class PromptPooling:
    """What the first `num_tokens` hidden states of one prompt have given."""

    def __init__(self, kind: Kind) -> None:
        """Begin with no token."""
        self.num_tokens = 0
        self._kind = kind
        self._total: NDArray[np.float64] = np.zeros(0)

    def add(self, hidden: NDArray[np.float32]) -> None:
        """Take in the hidden states [n, d] of the next n tokens, n at least 1."""
        if self._kind == "last":
            self._total = hidden[-1].astype(np.float64)
        else:
            if not self.num_tokens:
                self._total = np.zeros(hidden.shape[1])
            for row in hidden:
                self._total += row
        self.num_tokens += len(hidden)

    def vector(self) -> NDArray[np.float32]:
        """Return the embedding [d] of the tokens so far, not normalised: their mean, or the last one."""
        count = self.num_tokens if self._kind == "mean" else 1
        return (self._total / count).astype("<f4")
