"""Control tokens that no text can name: each is spelled with a secret inside this process.

The backend tokenizer knows a control token only by its secret spelling. Ordinary text therefore always becomes
ordinary tokens, whatever it says, and one call encodes a rendered prompt in which the template's own control tokens
are spelled out. A spelled text never leaves the process that made it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Final

_OPEN: Final = "\U0010fffc"
_CLOSE: Final = "\U0010fffd"
"""Private-use characters around a spelling: never whitespace, never changed by case, trimming or normalisation."""


class ControlTokens:
    """The control tokens of one loaded model: text to id, and their spellings in this process."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids: dict[str, int] = {text: token for text, token in ids.items() if text}
        nonce = secrets.token_hex(16)
        self._spelling = {text: f"{_OPEN}{nonce}{token}{_CLOSE}" for text, token in self.ids.items()}
        self._text = {spelling: text for text, spelling in self._spelling.items()}
        # Leftmost, longest: what the Aho-Corasick matcher of `tokenizers` does with added tokens.
        by_length = sorted(self.ids, key=len, reverse=True)
        self._texts = re.compile("|".join(map(re.escape, by_length))) if by_length else None
        self._spelled = re.compile(f"({_OPEN}{nonce}[0-9]+{_CLOSE})")

    def spelling(self, text: str) -> str:
        """Return the spelling of one control token. Raises KeyError."""
        return self._spelling[text]

    def spell(self, text: str) -> str:
        """Return `text` with every control token in it spelled. Only for text that may name control tokens."""
        if self._texts is None:
            return text
        return self._texts.sub(lambda match: self._spelling[match[0]], text)

    def unspell(self, spelled: str) -> str:
        """Return the text that people (and `apply_chat_template`) see."""
        return self._spelled.sub(lambda match: self._text.get(match[0], match[0]), spelled)

    def occurrences(self, text: str) -> list[tuple[int, int]]:
        """Return the (start, end) of every control token named in `text`."""
        return [match.span() for match in self._texts.finditer(text)] if self._texts else []

    def count(self, spelled: str) -> int:
        """Return how many control tokens are spelled in a text."""
        return sum(1 for match in self._spelled.finditer(spelled) if match[0] in self._text)

    def pieces(self, spelled: str) -> Iterator[str | int]:
        """Yield a spelled text's parts in order: text as it is, control tokens as ids."""
        for place, piece in enumerate(self._spelled.split(spelled)):
            if place % 2 and piece in self._text:
                yield self.ids[self._text[piece]]
            elif piece:
                yield piece
