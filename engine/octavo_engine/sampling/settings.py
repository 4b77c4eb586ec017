"""How one sequence's tokens are drawn: settings prepared once, so that a step only applies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

GREEDY_TEMPERATURE = 1e-5
"""At or below this temperature the most probable token is taken (the smallest sampling temperature vLLM knows too)."""

_NO_IDS: NDArray[np.int64] = np.empty(0, dtype=np.int64)
_NO_BIAS: NDArray[np.float32] = np.empty(0, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Sampling of one sequence. Make it with `prepare`, which checks the ids.

    `bias_ids`, `bias` [B]: logit bias. `allowed` [A]: the only tokens allowed, empty for all. `held_back` [H]: the ids
    that may not come before `min_tokens` tokens were generated (EOS and stop ids).
    """

    seed: int
    choice: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    bias_ids: NDArray[np.int64] = field(default_factory=lambda: _NO_IDS)
    bias: NDArray[np.float32] = field(default_factory=lambda: _NO_BIAS)
    allowed: NDArray[np.int64] = field(default_factory=lambda: _NO_IDS)
    held_back: NDArray[np.int64] = field(default_factory=lambda: _NO_IDS)

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken."""
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def penalised(self) -> bool:
        """Whether the tokens so far change the logits."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def plain(self) -> bool:
        """Whether the logits are used as they come (greedy then needs no copy of the row)."""
        return not (
            self.penalised or self.bias_ids.size or self.allowed.size or (self.min_tokens and self.held_back.size)
        )


def prepare(
    vocab_size: int,
    *,
    seed: int,
    choice: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    min_tokens: int = 0,
    logit_bias: Mapping[int, float] | None = None,
    allowed_token_ids: Sequence[int] = (),
    held_back_ids: Sequence[int] = (),
) -> SamplingSettings:
    """Return the settings with their id lists as arrays. Raises ValueError if an id is outside the vocabulary."""
    bias = dict(sorted((logit_bias or {}).items()))
    return SamplingSettings(
        seed=seed,
        choice=choice,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        min_tokens=min_tokens,
        bias_ids=_ids("logit_bias", bias, vocab_size),
        bias=np.fromiter(bias.values(), dtype=np.float32, count=len(bias)),
        allowed=_ids("allowed_token_ids", allowed_token_ids, vocab_size),
        held_back=_ids("stop_token_ids", held_back_ids, vocab_size),
    )


def _ids(name: str, ids: Sequence[int] | Mapping[int, float], vocab_size: int) -> NDArray[np.int64]:
    array = np.unique(np.fromiter(ids, dtype=np.int64, count=len(ids)))
    if array.size and not 0 <= array[0] <= array[-1] < vocab_size:
        raise ValueError(f"{name} names a token outside the vocabulary: ids go from 0 to {vocab_size - 1}.")
    return array
