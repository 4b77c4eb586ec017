"""How one sequence's tokens are drawn on the CPU: parameters prepared once, so that a step only applies them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo_engine.sampling.parameters import SamplingParameters, make_parameters
from octavo_kernels.cpu._native import Sampling


@dataclass(frozen=True, slots=True, eq=False)
class SamplingSettings:
    """Sampling of one sequence, made by `prepare`: what the kernel reads, and what it was made from."""

    native: Sampling
    parameters: SamplingParameters
    penalised: bool
    logprobs: int
    prompt_logprobs: int


def prepare(vocab_size: int, *, seed: int, **parameters: Any) -> SamplingSettings:
    """Return the settings for what `make_parameters` takes. Raises ValueError as it does."""
    plain = make_parameters(vocab_size, seed=seed, **parameters)
    native = Sampling(
        vocab_size=vocab_size,
        seed=plain.seed,
        choice=plain.choice,
        greedy=plain.greedy,
        temperature=plain.temperature,
        top_k=plain.top_k,
        top_p=plain.top_p,
        min_p=plain.min_p,
        presence=plain.presence,
        frequency=plain.frequency,
        repetition=plain.repetition,
        min_tokens=plain.min_tokens,
        bias_ids=plain.bias_ids,
        bias=plain.bias,
        allowed=plain.allowed,
        held_back=plain.held_back,
    )
    return SamplingSettings(native, plain, plain.penalised, plain.logprobs, plain.prompt_logprobs)
