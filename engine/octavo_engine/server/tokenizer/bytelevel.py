"""GPT-2's byte alphabet: every byte has a printable character, so that a vocabulary of strings spells any bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final


def _alphabet() -> dict[int, str]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    spelling = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in spelling)
    spelling.update((byte, chr(256 + place)) for place, byte in enumerate(others))
    return spelling


CHARACTER_OF_BYTE: Final = _alphabet()
_BYTE_OF_CHARACTER: Final = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}


def spell(data: bytes) -> str:
    """Return `data` in the byte alphabet."""
    return "".join(map(CHARACTER_OF_BYTE.__getitem__, data))


def is_spelled(token: str) -> bool:
    """Return whether every character of `token` is in the byte alphabet."""
    return all(character in _BYTE_OF_CHARACTER for character in token)


def token_bytes(tokens: Iterable[str]) -> list[bytes]:
    """Return the bytes each token stands for; a token outside the alphabet stands for its own UTF-8."""
    lookup = _BYTE_OF_CHARACTER
    found = []
    for token in tokens:
        try:
            found.append(bytes([lookup[character] for character in token]))
        except KeyError:
            found.append(token.encode("utf-8"))
    return found
