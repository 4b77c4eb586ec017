"""Presence, frequency and repetition penalties, as vLLM and OpenAI define them.

Repetition looks at prompt and output, presence and frequency at the output alone. The counts are a function of the
tokens, so they are rebuilt whenever a sequence is admitted (again): a preemption changes nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo_engine.sampling.settings import SamplingSettings


class TokenCounts:
    """How often a sequence has used each token: `seen` bool [V] in prompt or output, `output` int32 [V]."""

    __slots__ = ("output", "seen")

    def __init__(self, vocab_size: int, tokens: NDArray[np.int32], num_prompt_tokens: int) -> None:
        """Count `tokens` [n], of which the first `num_prompt_tokens` are the prompt."""
        self.seen: NDArray[np.bool_] = np.zeros(vocab_size, dtype=np.bool_)
        self.seen[tokens] = True
        self.output = np.bincount(tokens[num_prompt_tokens:], minlength=vocab_size).astype(np.int32)

    def add(self, token: int) -> None:
        """Count one generated token."""
        self.seen[token] = True
        self.output[token] += 1


def penalise(logits: NDArray[np.float32], settings: SamplingSettings, counts: TokenCounts) -> None:
    """Apply the penalties to one row of logits [V], in place: repetition, then frequency and presence."""
    if settings.repetition_penalty != 1:
        seen = np.flatnonzero(counts.seen)
        values, penalty = logits[seen], np.float32(settings.repetition_penalty)
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if settings.frequency_penalty != 0 or settings.presence_penalty != 0:
        used = np.flatnonzero(counts.output)
        logits[used] -= np.float32(settings.frequency_penalty) * counts.output[used].astype(np.float32)
        logits[used] -= np.float32(settings.presence_penalty)
