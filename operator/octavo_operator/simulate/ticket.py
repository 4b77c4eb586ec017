"""One request on its way through the simulated fleet, and what became of it."""

from __future__ import annotations

from typing import Literal

from .pool import Digest
from .trace import Request

Outcome = Literal["", "done", "refused", "expired", "too_long", "cut"]
"""Refused: the gateway held too many. Expired: held too long. Too long: no pod can hold it. Cut: its pod ended."""


class Ticket:
    """A request from its arrival at the gateway to its end. Times in simulated seconds, None: not yet."""

    __slots__ = (
        "cached_tokens", "digests", "finished_at", "first_token_at", "number", "outcome", "pod", "request", "sent_at",
    )  # fmt: skip

    def __init__(self, number: int, request: Request, digests: tuple[Digest, ...]) -> None:
        self.number = number
        self.request = request
        self.digests = digests
        self.outcome: Outcome = ""
        self.pod = -1
        """The ordinal of the pod that took it."""
        self.sent_at: float | None = None
        self.first_token_at: float | None = None
        self.finished_at: float | None = None
        self.cached_tokens = 0

    @property
    def ttft(self) -> float | None:
        """Seconds from its arrival to its first token, time held included; None without any."""
        return None if self.first_token_at is None else self.first_token_at - self.request.at

    @property
    def itl(self) -> float | None:
        """Mean seconds between its tokens; None for an answer of one, or none."""
        if self.outcome != "done" or self.request.output < 2:
            return None
        assert self.finished_at is not None
        assert self.first_token_at is not None
        return (self.finished_at - self.first_token_at) / (self.request.output - 1)

    def end(self, outcome: Outcome, now: float) -> None:
        """Note the end. Raises RuntimeError if it has ended: every request ends once."""
        if self.outcome:
            raise RuntimeError(f"request {self.number} ended twice: {self.outcome}, then {outcome}")
        self.outcome = outcome
        self.finished_at = now
