"""`PrefixAware`: to the endpoint that holds most of the request's prefix, unless it is crowded.

Everything is weighed in tokens of prefill. A cached prefix saves its tokens; a request more on an endpoint than on
another costs a little; a request above the bounds costs a lot, but not infinitely: a conversation of 100,000 tokens is
worth more than an even spread, one of 2,000 is not. Two bounds hold the spread: what an endpoint has now against the
mean now, and what it will soon have against the mean soon (a mean that falls leaves a full endpoint above it).

Prefixes rather than hashes, because hashing alone sends the conversations where chance wants them (3 times the mean
on the Mooncake trace); bounds rather than scores alone, because a popular prefix outweighs every score (faults.md,
B58).
"""

from __future__ import annotations

from dataclasses import dataclass

from .policies import blended_load, tie
from .prefix import CHUNK_TOKENS, PrefixIndex
from .types import Candidate, Ranking, Wanted


@dataclass(frozen=True, slots=True)
class Weights:
    """The constants of the score, chosen on the Mooncake trace (tests/acceptance/prefix_routing.py prints the result).

    Loads are in requests per endpoint, prices in tokens of prefill.
    """

    bound: float = 1.3
    """Largest load now, as a multiple of the mean."""
    soon_bound: float = 1.2
    """The same for what is expected soon: lower, because an expectation has no grain of whole requests."""
    few: float = 2.5
    """With fewer requests an endpoint than this, the mean counts as this many: ratios of small numbers are noise."""
    few_in_all: float = 32.0
    """The same for the requests of all endpoints together."""
    request_tokens: int = 512
    """Price of a request more than another endpoint has."""
    over_tokens: int = 65_536
    """Price of each request above `bound`, and of a part of one that part."""
    crowd_tokens: int = 16_384
    """Price of each request above `soon_bound`."""


class PrefixAware:
    """The policy. `unit_tokens` is how many tokens one digest stands for."""

    def __init__(self, unit_tokens: int = CHUNK_TOKENS, weights: Weights | None = None) -> None:
        """Start with no prefix known."""
        self._unit_tokens = unit_tokens
        self._weights = weights or Weights()
        self._indexes: dict[str, PrefixIndex] = {}

    def rank(self, wanted: Wanted, candidates: tuple[Candidate, ...]) -> Ranking:
        """Order by saved tokens less the price of the load."""
        price = _Price(candidates, self._weights)
        matched = {c.uid: self._matched(wanted, c.uid) for c in candidates}
        scored = sorted((price(c) - matched[c.uid], tie(wanted, c.uid), c.uid) for c in candidates)
        order = tuple(uid for _, _, uid in scored)
        most = max(matched.values())
        found = matched[order[0]]
        reason = "LeastLoad" if not most else "Prefix" if found == most else "BoundedLoad"
        return Ranking(order, reason, found)

    def sent(self, wanted: Wanted, to: Candidate) -> None:
        """Believe that the endpoint holds the request's prefix from now on."""
        index = self._indexes.setdefault(to.uid, PrefixIndex())
        index.add(wanted.digests, wanted.tail, max(1, to.room // self._unit_tokens))

    def forget(self, uid: str) -> None:
        """Drop the index of an endpoint that is gone, or that lost its cache."""
        self._indexes.pop(uid, None)

    def _matched(self, wanted: Wanted, uid: str) -> int:
        index = self._indexes.get(uid)
        return index.matched(wanted.digests, wanted.tail) * self._unit_tokens if index else 0


class _Price:
    """What one more request costs on an endpoint, in tokens, beside these others."""

    def __init__(self, candidates: tuple[Candidate, ...], weights: Weights) -> None:
        count = len(candidates)
        few = max(weights.few, weights.few_in_all / count)
        self._weights = weights
        self._most = weights.bound * max((1 + sum(c.load for c in candidates)) / count, few)
        self._most_soon = weights.soon_bound * max((1 + sum(c.soon for c in candidates)) / count, 0.9 * few)

    def __call__(self, candidate: Candidate) -> float:
        weights = self._weights
        over = max(0.0, candidate.load + 1 - self._most)
        crowd = max(0.0, candidate.soon + 1 - self._most_soon)
        return (
            blended_load(candidate) * weights.request_tokens + over * weights.over_tokens + crowd * weights.crowd_tokens
        )
