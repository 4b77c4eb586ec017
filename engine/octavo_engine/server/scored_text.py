"""Which token stands where in a growing text: what log-probabilities are told with."""

from __future__ import annotations

from collections import deque

from octavo_engine.ipc.scores import TokenScore
from octavo_engine.server.protocol.logprobs import Scored


class ScoredText:
    """The tokens of one choice, each let go with the text behind its place: text may be held back, or never leave.

    A token's place is the number of characters before it. A token within a character has that character's place.
    """

    def __init__(self) -> None:
        """Begin an empty text."""
        self._held: deque[Scored] = deque()
        self._decoded = 0
        self._sent = 0

    def add(self, token: int, score: TokenScore | None, text: str) -> None:
        """Add a token that completed so much text."""
        self._held.append(Scored(token, self._decoded, score))
        self._decoded += len(text)

    def flush(self, text: str) -> None:
        """Add text that no token completed: what an unfinished character leaves."""
        self._decoded += len(text)

    def sent(self, text: str) -> list[Scored]:
        """Return the tokens that go with the text that is sent now."""
        self._sent += len(text)
        gone = []
        while self._held and self._held[0].offset < self._sent:
            gone.append(self._held.popleft())
        return gone

    def rest(self) -> list[Scored]:
        """Return the tokens that stand behind all text: the text has ended, and not by a stop string."""
        rest = list(self._held)
        self._held.clear()
        return rest
