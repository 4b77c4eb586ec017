"""How one sequence's tokens are drawn, as plain data: what every backend's sampler is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GREEDY_TEMPERATURE = 1e-5
"""At or below this temperature the most probable token is taken (the smallest sampling temperature vLLM knows too)."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SamplingParameters:
    """Sampling of one sequence. Ids are inside the vocabulary, sorted, each once.

    top_k: below 1 for all. bias: float32, of `bias_ids`. allowed: empty for all. held_back: not before `min_tokens`.
    logprobs, prompt_logprobs: how many alternatives are told beside the log-probability of each token drawn, or of the
    prompt; -1 for nothing.
    """

    vocab_size: int
    seed: int
    choice: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence: float
    frequency: float
    repetition: float
    min_tokens: int
    bias_ids: NDArray[np.int64]
    bias: NDArray[np.float32]
    allowed: NDArray[np.int64]
    held_back: NDArray[np.int64]
    logprobs: int = -1
    prompt_logprobs: int = -1

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken."""
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def penalised(self) -> bool:
        """Whether the tokens so far change the logits."""
        return self.presence != 0 or self.frequency != 0 or self.repetition != 1


def make_parameters(
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
    logprobs: int = -1,
    prompt_logprobs: int = -1,
) -> SamplingParameters:
    """Return the parameters. Raises ValueError if an id is outside the vocabulary, or more is asked for than it has."""
    bias = dict(sorted((logit_bias or {}).items()))
    if max(logprobs, prompt_logprobs) > vocab_size:
        raise ValueError(f"More alternatives are asked for than there are tokens: {vocab_size}.")
    return SamplingParameters(
        vocab_size=vocab_size,
        seed=seed & 0xFFFF_FFFF_FFFF_FFFF,
        choice=choice,
        temperature=temperature,
        top_k=min(top_k, vocab_size),
        top_p=top_p,
        min_p=min_p,
        presence=presence_penalty,
        frequency=frequency_penalty,
        repetition=repetition_penalty,
        min_tokens=min_tokens,
        bias_ids=_ids("logit_bias", bias, vocab_size),
        bias=np.fromiter(bias.values(), dtype=np.float32, count=len(bias)),
        allowed=_ids("allowed_token_ids", allowed_token_ids, vocab_size),
        held_back=_ids("stop_token_ids", held_back_ids, vocab_size),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _ids(name: str, ids: Sequence[int] | Mapping[int, float], vocab_size: int) -> NDArray[np.int64]:
    array = np.unique(np.fromiter(ids, dtype=np.int64, count=len(ids)))
    if array.size and not 0 <= array[0] <= array[-1] < vocab_size:
        raise ValueError(f"{name} names a token outside the vocabulary: ids go from 0 to {vocab_size - 1}.")
    return array
