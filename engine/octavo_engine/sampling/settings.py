"""How one sequence's tokens are drawn: settings prepared once, so that a step only applies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo_kernels.cpu._native import Sampling

GREEDY_TEMPERATURE = 1e-5
"""At or below this temperature the most probable token is taken (the smallest sampling temperature vLLM knows too)."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Sampling of one sequence, made by `prepare`: what the kernel reads, and whether the tokens so far change it.

    logprobs, prompt_logprobs: how many alternatives are told beside the log-probability of each token drawn, or of the
    prompt; -1 for nothing.
    """

    native: Sampling
    penalised: bool
    logprobs: int = -1
    prompt_logprobs: int = -1


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
    logprobs: int = -1,
    prompt_logprobs: int = -1,
) -> SamplingSettings:
    """Return the settings. Raises ValueError if an id is outside the vocabulary, or more is asked for than it has."""
    bias = dict(sorted((logit_bias or {}).items()))
    native = Sampling(
        vocab_size=vocab_size,
        seed=seed & 0xFFFF_FFFF_FFFF_FFFF,
        choice=choice,
        greedy=temperature <= GREEDY_TEMPERATURE,
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
    )
    penalised = presence_penalty != 0 or frequency_penalty != 0 or repetition_penalty != 1
    if max(logprobs, prompt_logprobs) > vocab_size:
        raise ValueError(f"More alternatives are asked for than there are tokens: {vocab_size}.")
    return SamplingSettings(native, penalised, logprobs, prompt_logprobs)


def _ids(name: str, ids: Sequence[int] | Mapping[int, float], vocab_size: int) -> NDArray[np.int64]:
    array = np.unique(np.fromiter(ids, dtype=np.int64, count=len(ids)))
    if array.size and not 0 <= array[0] <= array[-1] < vocab_size:
        raise ValueError(f"{name} names a token outside the vocabulary: ids go from 0 to {vocab_size - 1}.")
    return array
