"""Limits per tenant of one InferenceService, as one of several pickers keeps them.

There is no shared store: every picker keeps its part, the limit divided by the number of live gateway pods (design.md
section 7). A part is rounded down but never below 1, so together they admit no more than the limit, unless there are
more pickers than the limit allows requests.

A minute is any sixty seconds, not the clock's: the window slides in steps of a second and never lets more through.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import floor
from typing import Final, NamedTuple

from . import refusal
from .refusal import Refusal

MINUTE_SECONDS: Final = 60
_BYTES_PER_TOKEN: Final = 4.0
"""Until a request's real count was seen: English under the tokenizers in use."""
_LEARNING: Final = 0.05
"""Weight of one request in the means that are learned: the last few dozen count."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tenant may, None for no limit; for all gateway pods together."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None


class Window:
    """What was used in the last minute, in buckets of a second: as little memory for a large limit as for a small."""

    def __init__(self) -> None:
        """Start with nothing used."""
        self._buckets: deque[list[int]] = deque()
        self._used = 0

    def used(self, now: float) -> int:
        """Return what was used within the minute before `now`, up to a second longer."""
        oldest = floor(now) - MINUTE_SECONDS
        while self._buckets and self._buckets[0][0] < oldest:
            self._used -= self._buckets.popleft()[1]
        return self._used

    def add(self, amount: int, now: float) -> int:
        """Use `amount` and return the second under which it is kept."""
        second = floor(now)
        self.used(now)
        if self._buckets and self._buckets[-1][0] == second:
            self._buckets[-1][1] += amount
        else:
            self._buckets.append([second, amount])
        self._used += amount
        return second

    def correct(self, second: int, change: int) -> None:
        """Correct what was added under a second, if that is still remembered; never below nothing."""
        for bucket in self._buckets:
            if bucket[0] == second:
                change = max(change, -bucket[1])
                bucket[1] += change
                self._used += change

    def room_in(self, amount: int, most: int, now: float) -> float:
        """Return the seconds until `amount` fits under `most` if nothing else comes; 0 if it fits now.

        More than `most` fits into an empty window only.
        """
        used = self.used(now)
        if used + amount <= most:
            return 0.0
        for second, kept in self._buckets:
            used -= kept
            if used + amount <= most or used == 0:
                return max(0.0, second + MINUTE_SECONDS + 1 - now)
        return 0.0


class _Charge(NamedTuple):
    tenant: str
    second: int
    tokens: int
    text_bytes: int


class Expectation:
    """How many tokens a request will be, learned from those that were counted."""

    def __init__(self) -> None:
        """Start with four bytes a token, and no answer expected beyond what is asked for."""
        self._bytes_per_token = _BYTES_PER_TOKEN
        self._output: float | None = None

    def tokens(self, text_bytes: int, max_tokens: int | None) -> int:
        """Return the tokens to charge: the prompt's, and of the answer as many as usual but no more than allowed."""
        usual = self._output
        answer = (max_tokens or 0) if usual is None else usual if max_tokens is None else min(usual, max_tokens)
        return max(1, round(text_bytes / self._bytes_per_token + answer))

    def learn(self, text_bytes: int, prompt_tokens: int, output_tokens: int) -> None:
        """Learn a request's real counts."""
        if prompt_tokens > 0 and text_bytes > 0:
            self._bytes_per_token += _LEARNING * (text_bytes / prompt_tokens - self._bytes_per_token)
        self._output = (
            output_tokens if self._output is None else self._output + _LEARNING * (output_tokens - self._output)
        )


class Limiter:
    """The limits of one service's tenants. A tenant without an entry has none. Times are the picker's seconds."""

    def __init__(self, limits: dict[str, Limits] | None = None, pickers: int = 1) -> None:
        """Start with nothing used."""
        self._limits = dict(limits or {})
        self._pickers = max(1, pickers)
        self._requests: dict[str, Window] = {}
        self._tokens: dict[str, Window] = {}
        self._charges: dict[str, _Charge] = {}
        self._concurrent: dict[str, int] = {}
        self.expectation = Expectation()

    def configure(self, limits: dict[str, Limits], pickers: int) -> None:
        """Take new limits, or a new number of live pickers; what was used stays used."""
        self._limits = dict(limits)
        self._pickers = max(1, pickers)
        for windows in (self._requests, self._tokens):
            for tenant in [tenant for tenant in windows if tenant not in limits]:
                del windows[tenant]

    def part(self, limit: int) -> int:
        """Return this picker's part of a limit."""
        return max(1, limit // self._pickers)

    def concurrent(self, tenant: str) -> int:
        """Return how many requests of a tenant are in flight or held here."""
        return self._concurrent.get(tenant, 0)

    def admit(
        self, request_id: str, tenant: str, now: float, text_bytes: int = 0, max_tokens: int | None = None
    ) -> Refusal | None:
        """Charge a request, or say which limit it is over; a refused one is not charged."""
        limits = self._limits.get(tenant, Limits())
        tokens = self.expectation.tokens(text_bytes, max_tokens)
        refused = self._refused(tenant, limits, tokens, now)
        if refused is not None:
            return refused
        if limits.requests_per_minute is not None:
            self._requests.setdefault(tenant, Window()).add(1, now)
        second = 0
        if limits.tokens_per_minute is not None:
            second = self._tokens.setdefault(tenant, Window()).add(tokens, now)
        if request_id not in self._charges:
            self._concurrent[tenant] = self.concurrent(tenant) + 1
        self._charges[request_id] = _Charge(tenant, second, tokens, text_bytes)
        return None

    def ended(self, request_id: str, prompt_tokens: int | None = None, output_tokens: int | None = None) -> None:
        """Free a request's place; with its real counts, correct its charge and learn. A second end changes nothing."""
        charge = self._charges.pop(request_id, None)
        if charge is None:
            return
        left = self.concurrent(charge.tenant) - 1
        if left > 0:
            self._concurrent[charge.tenant] = left
        else:
            self._concurrent.pop(charge.tenant, None)
        if prompt_tokens is not None and output_tokens is not None:
            self.expectation.learn(charge.text_bytes, prompt_tokens, output_tokens)
            window = self._tokens.get(charge.tenant)
            if window is not None:
                window.correct(charge.second, prompt_tokens + output_tokens - charge.tokens)

    def _refused(self, tenant: str, limits: Limits, tokens: int, now: float) -> Refusal | None:
        if limits.max_concurrent is not None and self.concurrent(tenant) >= self.part(limits.max_concurrent):
            return refusal.over_limit("requests at once", limits.max_concurrent, 1)
        if limits.requests_per_minute is not None:
            window = self._requests.setdefault(tenant, Window())
            wait = window.room_in(1, self.part(limits.requests_per_minute), now)
            if wait:
                return refusal.over_limit("requests a minute", limits.requests_per_minute, wait)
        if limits.tokens_per_minute is not None:
            return self._too_many_tokens(tenant, limits.tokens_per_minute, tokens, now)
        return None

    def _too_many_tokens(self, tenant: str, limit: int, tokens: int, now: float) -> Refusal | None:
        """Return the refusal, if any. One request may be more than this picker's part, if it is all of the minute."""
        if tokens > limit:
            return refusal.over_every_limit(tokens, limit)
        window = self._tokens.setdefault(tenant, Window())
        if not window.used(now):
            return None
        wait = window.room_in(tokens, self.part(limit), now)
        return refusal.over_limit("tokens a minute", limit, wait) if wait else None
