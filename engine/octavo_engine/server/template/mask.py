"""Hides, in what users wrote, the characters that control tokens are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_PLANES = range(0xF0000, 0xFF000, 0x400)
"""Private-use characters to hide behind; a range that a text uses itself is passed over."""
_FIXED_KEYS = frozenset({"role", "type"})


class Mask:
    """One character for one character, so that places in a masked text are places in the text."""

    def __init__(self, characters: Iterable[str], base: int) -> None:
        pairs = {ord(character): base + place for place, character in enumerate(sorted(characters))}
        self._there = pairs
        self._back = {masked: plain for plain, masked in pairs.items()}

    @classmethod
    def for_text(cls, tokens: Iterable[str], text: str) -> Mask:
        """Return a mask for the characters of `tokens` (marks, first and last ones) that `text` does not use itself."""
        characters = {
            character
            for token in tokens
            for place, character in enumerate(token)
            if not character.isspace() and (not character.isalnum() or place in (0, len(token) - 1))
        }
        used = set(text)
        base = next(base for base in _PLANES if not any(chr(base + place) in used for place in range(len(characters))))
        return cls(characters, base)

    def apply(self, value: Any) -> Any:
        """Return a copy of messages or variables with their texts masked; words for roles and types stay."""
        if isinstance(value, str):
            return value.translate(self._there)
        if isinstance(value, list):
            return [self.apply(item) for item in value]
        if isinstance(value, dict):
            return {self._key(key): self._item(key, item) for key, item in value.items()}
        return value

    def _item(self, key: str, item: Any) -> Any:
        # Templates compare roles and types with words; a tool's schema may say anything under these names.
        return item if key in _FIXED_KEYS and isinstance(item, str) and item.isalnum() else self.apply(item)

    def undo(self, text: str) -> str:
        """Return the text that was masked."""
        return text.translate(self._back)

    def _key(self, key: str) -> str:
        # Names of fields are the protocol's; only a key that could hold a token is a user's.
        return key if key.replace("_", "").isalnum() else key.translate(self._there)
