"""Prompt lookup: where the last tokens of a text stood before, in that text itself.

Every pair of tokens is indexed once, when it is no longer the last: by pair where it ended last, and for each place
where the same pair ended before that. A look-up walks a few of these places, back from the latest, and takes the one
that agrees with the text's end the longest. After Saxena, "Prompt Lookup Decoding" (2023).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

MIN_MATCH: Final = 2
"""Tokens that must agree: what the index holds."""
MAX_MATCH: Final = 8
"""Tokens compared at the most: longer agreement says nothing more."""
_CANDIDATES: Final = 4
_NOWHERE: Final = -1


class Match(NamedTuple):
    """What stands at `source` followed the same `length` tokens as end the text now."""

    source: int
    length: int


class NgramIndex:
    """The pairs of one growing text. Each token is looked at once, whenever it comes."""

    __slots__ = ("_before", "_last")

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._before = array("i")
        """Index 0 belongs to the pair that ends at token 1."""

    def find(self, tokens: Sequence[int]) -> Match | None:
        """Take in what `tokens` has grown by, and return the best earlier place of its end, if there is one."""
        self._extend(tokens)
        if len(tokens) < MIN_MATCH:
            return None
        end = self._last.get(tokens[-2] << 32 | tokens[-1], _NOWHERE)
        best, longest = _NOWHERE, MIN_MATCH - 1
        for _ in range(_CANDIDATES):
            if end == _NOWHERE:
                break
            length = _agreement(tokens, end)
            if length > longest:
                best, longest = end, length
                if length == MAX_MATCH:
                    break
            end = self._before[end - 1]
        return None if best == _NOWHERE else Match(best + 1, longest)

    def _extend(self, tokens: Sequence[int]) -> None:
        """Index the pairs up to the last but one token: the last pair must not find itself."""
        last, before = self._last, self._before
        for end in range(len(before) + 1, len(tokens) - 1):
            pair = tokens[end - 1] << 32 | tokens[end]
            before.append(last.get(pair, _NOWHERE))
            last[pair] = end


def _agreement(tokens: Sequence[int], end: int) -> int:
    """Return how many tokens up to `end` equal the last ones, at most MAX_MATCH; the last two are known to."""
    length, offset = MIN_MATCH, end - len(tokens) + 1
    longest = min(MAX_MATCH, end + 1)
    place = len(tokens) - 1 - MIN_MATCH
    while length < longest and tokens[place] == tokens[place + offset]:
        length += 1
        place -= 1
    return length
