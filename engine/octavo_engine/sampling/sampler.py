"""Sample a step's rows: filters in the design's order, drafts verified exactly, a bad row fails alone.

Order: bias, penalties, allowed ids, min_tokens, temperature, top-k, top-p, min-p.

A draft is accepted if, and only if, it equals the token that would have been sampled at its position. Each position has
its own uniform, so drafts change how many tokens a step gives and never which tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.sampling.distribution import draw
from octavo_engine.sampling.penalties import TokenCounts, penalise
from octavo_engine.sampling.philox import uniforms
from octavo_engine.sampling.settings import SamplingSettings

NOT_FINITE = "The model's logits are not finite for this request."
NOTHING_ALLOWED = "No token is allowed here: allowed_token_ids and min_tokens together forbid every token."

_FORBIDDEN = np.float32(-np.inf)


class RowSampling(NamedTuple):
    """One row to sample. It owns 1 + len(drafts) consecutive rows of the logits.

    `position` is the index of the token to be sampled first, counted from the sequence's start. `counts` is needed if
    the settings penalise, and is brought up to date with what is sampled.
    """

    settings: SamplingSettings
    position: int
    num_prompt_tokens: int
    drafts: tuple[int, ...] = ()
    counts: TokenCounts | None = None


class Sampled(NamedTuple):
    """Accepted drafts and one token more. `failed` says why the row failed; `tokens` is empty then."""

    tokens: tuple[int, ...]
    failed: str = ""


def sample(logits: NDArray[np.float32], rows: Sequence[RowSampling]) -> list[Sampled]:
    """Return each row's tokens. logits: [L, V], where L is the sum of 1 + len(drafts) over the rows.

    A row's result depends on its own logits, settings and position only.
    """
    if not rows:
        return []
    best = logits.argmax(axis=1)
    # The largest and the smallest are finite if and only if all are; NaN comes out of both.
    finite = np.isfinite(logits.max(axis=1)) & np.isfinite(logits.min(axis=1))
    draws = _draws(rows)
    sampled, first = [], 0
    for row in rows:
        end = first + 1 + len(row.drafts)
        sampled.append(_sample_row(row, logits[first:end], best[first:end], finite[first:end], draws[first:end]))
        first = end
    return sampled


def _draws(rows: Sequence[RowSampling]) -> NDArray[np.float64]:
    seeds, choices, positions = [], [], []
    for row in rows:
        for offset in range(1 + len(row.drafts)):
            seeds.append(row.settings.seed)
            choices.append(row.settings.choice)
            positions.append(row.position + offset)
    return uniforms(seeds, choices, positions)


def _sample_row(
    row: RowSampling,
    logits: NDArray[np.float32],
    best: NDArray[np.int64],
    finite: NDArray[np.bool_],
    draws: NDArray[np.float64],
) -> Sampled:
    tokens: list[int] = []
    for index in range(1 + len(row.drafts)):
        if not finite[index]:
            return Sampled((), NOT_FINITE)
        if row.settings.plain and row.settings.greedy:
            token = int(best[index])
        else:
            token = _sample_token(row, logits[index], row.position + index, float(draws[index]))
        if token < 0:
            return Sampled((), NOTHING_ALLOWED)
        tokens.append(token)
        if row.counts is not None:
            row.counts.add(token)
        if index < len(row.drafts) and token != row.drafts[index]:
            break
    return Sampled(tuple(tokens))


def _sample_token(row: RowSampling, logits: NDArray[np.float32], position: int, uniform: float) -> int:
    """Return the token at `position`, -1 if none is allowed."""
    settings = row.settings
    if not settings.plain:
        logits = _adjust(logits, row, position)
    token = int(logits.argmax())
    if logits[token] == _FORBIDDEN:
        return -1
    return token if settings.greedy else draw(logits, settings, uniform)


def _adjust(logits: NDArray[np.float32], row: RowSampling, position: int) -> NDArray[np.float32]:
    """Return the row with bias, penalties, allowed ids and min_tokens applied."""
    settings = row.settings
    logits = logits.copy()
    logits[settings.bias_ids] += settings.bias
    if row.counts is not None:
        penalise(logits, settings, row.counts)
    if settings.allowed.size:
        allowed = np.full_like(logits, _FORBIDDEN)
        allowed[settings.allowed] = logits[settings.allowed]
        logits = allowed
    if position - row.num_prompt_tokens < settings.min_tokens:
        logits[settings.held_back] = _FORBIDDEN
    return logits
