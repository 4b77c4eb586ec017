"""Names on both sides: a request and its choices to the API process, one sequence id each to the scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import numpy as np

from octavo_engine.core import config as core
from octavo_engine.core.stop import StopRule
from octavo_engine.ipc.messages import Submit, TokensOut
from octavo_engine.sampling.sampler import NOTHING_ALLOWED
from octavo_engine.sampling.settings import SamplingSettings, prepare
from octavo_engine.worker.grammar import CANNOT_FOLLOW

_UNSATISFIABLE = (NOTHING_ALLOWED, CANNOT_FOLLOW)
"""How the failures begin for which a request's own rules are to blame."""


class RequestTable:
    """Which sequence is which choice of which request, from submission until the sequence has ended."""

    def __init__(self) -> None:
        """Start empty; sequence ids count up from 0 and are never used twice."""
        self._ids = count()
        self._choice_of: dict[int, tuple[int, int]] = {}
        self._sequences_of: dict[int, dict[int, int]] = {}

    def __len__(self) -> int:
        """Return how many sequences have not ended."""
        return len(self._choice_of)

    def add(self, request: int, choices: int) -> tuple[int, ...]:
        """Return one new sequence id for each choice."""
        sequences = tuple(next(self._ids) for _ in range(choices))
        self._sequences_of[request] = dict(enumerate(sequences))
        for choice, sequence in enumerate(sequences):
            self._choice_of[sequence] = (request, choice)
        return sequences

    def find(self, request: int, choice: int) -> tuple[int, ...]:
        """Return the sequences of a choice, of all choices for -1, that have not ended. None known is no error."""
        sequences = self._sequences_of.get(request, {})
        return tuple(sequence for index, sequence in sequences.items() if choice in (-1, index))

    def remove(self, sequence: int) -> None:
        """Forget a sequence that has ended."""
        request, choice = self._choice_of.pop(sequence)
        choices = self._sequences_of[request]
        del choices[choice]
        if not choices:
            del self._sequences_of[request]

    def outputs(self, events: Iterable[core.Event]) -> list[TokensOut]:
        """Translate the scheduler's events."""
        return [self._output(event) for event in events]

    def _output(self, event: core.Event) -> TokensOut:
        request, choice = self._choice_of[event.sequence]
        # What an event has behind its sequence a message has behind its choice.
        return TokensOut(request, choice, *event[1:], unsatisfiable=event.detail.startswith(_UNSATISFIABLE))


def core_request(
    submit: Submit, sequences: tuple[int, ...], vocab_size: int, now: float, adapter_digest: str
) -> core.Request:
    """Return the request as the scheduler takes it. `now` is the loop's monotonic clock.

    Raises ValueError if the prompt is no array of token ids: one bad id would fail a whole step.
    """
    prompt = np.frombuffer(submit.prompt, dtype="<i4")
    if prompt.size and not 0 <= prompt.min() <= prompt.max() < vocab_size:
        raise ValueError(f"The prompt names a token outside the vocabulary: ids go from 0 to {vocab_size - 1}.")
    return core.Request(
        sequences=sequences,
        prompt=tuple(prompt.tolist()),
        stop=StopRule(
            max_tokens=submit.stop.max_tokens,
            min_tokens=submit.stop.min_tokens,
            stop_token_ids=submit.stop.stop_token_ids,
            ignore_eos=submit.stop.ignore_eos,
        ),
        arrival=now - submit.age_seconds,
        priority=submit.priority,
        salt=submit.salt,
        adapter=submit.adapter,
        adapter_digest=adapter_digest,
        needs_all_positions=submit.prompt_logprobs >= 0,
        pooled=submit.pooled,
        blocked=core.BlockReason.GRAMMAR if submit.sampling.grammar else None,
    )


def settings_of(submit: Submit, choice: int, vocab_size: int, eos_token_ids: tuple[int, ...]) -> SamplingSettings:
    """Return one choice's sampling settings. Raises ValueError if the request names an id outside the vocabulary."""
    sampling, stop = submit.sampling, submit.stop
    return prepare(
        vocab_size,
        seed=sampling.seed,
        choice=choice,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        min_tokens=stop.min_tokens,
        logit_bias=sampling.logit_bias,
        allowed_token_ids=sampling.allowed_token_ids,
        held_back_ids=stop.stop_token_ids if stop.ignore_eos else (*stop.stop_token_ids, *eos_token_ids),
        logprobs=sampling.logprobs,
        prompt_logprobs=submit.prompt_logprobs if choice == 0 else -1,
    )
