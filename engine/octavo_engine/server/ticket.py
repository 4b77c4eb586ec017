"""One HTTP request at the engine: its sequences' outputs on their way to the text.

Outputs are kept as bare token ids until the response takes them, merged per choice: a client that reads slowly costs
four bytes a token, with log-probabilities eight more and eight for each alternative, at most `max_model_len` times, and
holds up nobody.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from octavo_engine.ipc.messages import TokensOut
from octavo_engine.server.errors import ApiError

Finish = Literal["", "stop", "length", "abort", "error"]


@dataclass(slots=True)
class Output:
    """What came for one choice since it was last taken."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    finish: Finish = ""
    detail: str = ""
    stop_reason: int = -1
    unsatisfiable: bool = False
    logprobs: bytearray = field(default_factory=bytearray)
    prompt_logprobs: bytearray = field(default_factory=bytearray)
    pooled: bytes = b""

    def extend(self, other: Output) -> None:
        """Add what came later."""
        self.tokens.extend(other.tokens)
        self.logprobs += other.logprobs
        self.prompt_logprobs += other.prompt_logprobs
        if other.finish:
            self.finish, self.detail, self.stop_reason = other.finish, other.detail, other.stop_reason
            self.pooled = other.pooled
            self.unsatisfiable = other.unsatisfiable


class Ticket:
    """The waiting side of one HTTP request with `num_choices` choices in `num_requests` engine requests."""

    def __init__(
        self, num_requests: int, num_choices: int, end_choice: Callable[[int], None], close: Callable[[], None]
    ) -> None:
        """Make a ticket; the callbacks end one choice early, and all that is still open."""
        self.num_choices = num_choices
        self.cached_tokens = 0
        self.end_choice = end_choice
        self.close = close
        self._to_accept = num_requests
        self._pending: dict[int, Output] = {}
        self._failure: ApiError | None = None
        self._event = asyncio.Event()

    # --- The engine client's side ---
    def accept_one(self) -> None:
        """One of the requests is in the engine's hands."""
        self._to_accept -= 1
        if self._to_accept == 0:
            self._event.set()

    def deliver(self, choice: int, out: TokensOut) -> None:
        """Add an output of one choice."""
        pending = self._pending.get(choice)
        if pending is None:
            pending = self._pending[choice] = Output()
        pending.tokens.extend(out.tokens)
        if out.logprobs:
            pending.logprobs += out.logprobs
        if out.prompt_logprobs:
            pending.prompt_logprobs += out.prompt_logprobs
        if out.finish:
            pending.finish, pending.detail, pending.stop_reason = out.finish, out.detail, out.stop_reason
            pending.pooled = out.pooled
            pending.unsatisfiable = out.unsatisfiable
        self._event.set()

    def fail(self, error: ApiError) -> None:
        """Break the whole request off; what was delivered before is still taken first."""
        if self._failure is None:
            self._failure = error
        self._event.set()

    # --- The response's side ---
    async def accepted(self) -> None:
        """Wait until the engine has taken every request. Raises ApiError if it refused one, or has gone."""
        while self._to_accept and self._failure is None:
            self._event.clear()
            await self._event.wait()
        if self._failure is not None and (self._to_accept or not self._pending):
            raise self._failure

    async def take(self) -> dict[int, Output]:
        """Wait for outputs and return them by choice. Raises ApiError once the request has been broken off."""
        while not self._pending:
            if self._failure is not None:
                raise self._failure
            self._event.clear()
            await self._event.wait()
        pending, self._pending = self._pending, {}
        return pending
