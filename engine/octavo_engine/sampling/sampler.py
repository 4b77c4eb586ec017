"""Sample a step's rows in one native call: drafts verified exactly, a bad row fails alone.

Order: bias, penalties, allowed ids, grammar, min_tokens, temperature, top-k, top-p, min-p. The arithmetic is fixed, so
that a row gives the same token whatever runs beside it and whoever computes it:

- Tokens are ranked once: largest logit first, of equal ones the lowest id. Every filter keeps the beginning of that
  ranking: top-k the first k; top-p the shortest one that holds the share p of what is left; min-p those whose weight is
  at least that share of the largest.
- A weight is exp((logit - largest) * (1 / temperature)) in float32, each product and sum rounded on its own, times 2^30
  and cut to an integer: sums are exact in any order. What is below 2^-30 of the largest is never drawn.
- The token is the first, in the order of ids, at which the cumulative weight exceeds uniform * total. The uniform is
  Philox4x32-10's of (seed, choice, position): it has no state, so it survives preemption.

A draft is accepted if, and only if, it equals the token that would have been sampled at its position. Each position has
its own uniform, so drafts change how many tokens a step gives and never which tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.sampling.penalties import TokenCounts
from octavo_engine.sampling.settings import SamplingSettings
from octavo_kernels.cpu import _native
from octavo_kernels.cpu._native import Pool

NOT_FINITE = "The model's logits are not finite for this request."
NOTHING_ALLOWED = "No token is allowed here: allowed_token_ids, min_tokens and the grammar together forbid every token."

_NO_DRAFTS: NDArray[np.int32] = np.empty(0, dtype=np.int32)


class RowSampling(NamedTuple):
    """One row to sample. It owns 1 + len(drafts) consecutive rows of the logits.

    `position` is the index of the token to be sampled first, counted from the sequence's start. `counts` is needed if
    the settings penalise, and is brought up to date with what is sampled. `mask` is the first of its masks, -1 for
    none: a row with a grammar has one mask for each of its rows of the logits. min_tokens yields to a grammar that
    allows nothing but to end.
    """

    settings: SamplingSettings
    position: int
    num_prompt_tokens: int
    drafts: tuple[int, ...] = ()
    counts: TokenCounts | None = None
    mask: int = -1


class Sampled(NamedTuple):
    """Accepted drafts and one token more. `failed` says why the row failed; `tokens` is empty then."""

    tokens: tuple[int, ...]
    failed: str = ""


_FAILED = {-1: Sampled((), NOT_FINITE), -2: Sampled((), NOTHING_ALLOWED)}


@cache
def own_pool() -> Pool:
    """Return the pool of those who have none: the caller's thread alone."""
    return Pool(1)


def sample(
    logits: NDArray[np.float32],
    rows: Sequence[RowSampling],
    pool: Pool | None = None,
    masks: NDArray[np.int32] | None = None,
) -> list[Sampled]:
    """Return each row's tokens. logits: [L, V], where L is the sum of 1 + len(drafts) over the rows.

    masks: [M, ceil(V / 32)], bits of the tokens that grammars allow, the lowest first. A row's result depends on its
    own logits, masks, settings and position only. `pool`: whose threads share the work.
    """
    if not rows:
        return []
    settings, positions, num_prompt_tokens, drafts, counts, first_masks = zip(*rows, strict=True)
    first = np.array(positions, dtype=np.int64)
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    flat = _NO_DRAFTS
    if any(drafts):
        np.cumsum([len(each) for each in drafts], out=offsets[1:])
        flat = np.fromiter(chain.from_iterable(drafts), dtype=np.int32, count=int(offsets[-1]))
    tokens = np.empty(len(logits), dtype=np.int32)
    given = np.empty(len(rows), dtype=np.int32)
    _native.sample(
        pool or own_pool(),
        logits,
        [each.native for each in settings],
        list(counts),
        first,
        first - num_prompt_tokens,
        offsets,
        flat,
        tokens,
        given,
        masks,
        None if masks is None else np.array(first_masks, dtype=np.int32),
    )
    found = tokens.tolist()
    if not flat.size:
        pairs = zip(found, given.tolist(), strict=True)
        return [Sampled((token,)) if count > 0 else _FAILED[count] for token, count in pairs]
    begins = (offsets[:-1] + np.arange(len(rows), dtype=np.int32)).tolist()
    return [
        Sampled(tuple(found[begin : begin + count])) if count > 0 else _FAILED[count]
        for begin, count in zip(begins, given.tolist(), strict=True)
    ]
