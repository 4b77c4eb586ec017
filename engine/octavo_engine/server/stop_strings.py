"""Stop strings in a growing text: nothing that may be the head of one leaves before it is known not to be.

Characters are followed one by one with the failure function of Knuth, Morris and Pratt (1977), so the result does not
depend on how the text was cut into pieces. The stop string that is complete first wins; of two that end on the same
character, the longer.
"""

from __future__ import annotations

from collections.abc import Sequence


def _failure(pattern: str) -> list[int]:
    """Return, for each prefix of `pattern`, the length of its longest proper border."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        table[index] = length
    return table


class StopStrings:
    """Watches one choice's text. `matched` is the stop string found, or None."""

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """Watch for `stops` (none of them empty); `include` leaves the one found in the text."""
        # Longest first: of two complete on the same character the longer is seen first.
        self._stops = [(stop, _failure(stop)) for stop in sorted(stops, key=len, reverse=True)]
        self._lengths = [0] * len(self._stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    @property
    def watches(self) -> bool:
        """Whether there is anything to watch for."""
        return bool(self._stops)

    def push(self, text: str) -> str:
        """Take the next piece and return what may be sent; after a match, nothing more."""
        if self.matched is not None or not text:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        for position in range(len(self._held), len(buffer)):
            found = self._advance(buffer[position])
            if found is not None:
                self.matched, self._held = found, ""
                return buffer[: position + 1 - (0 if self._include else len(found))]
        keep = len(buffer) - max(self._lengths)
        self._held = buffer[keep:]
        return buffer[:keep]

    def finish(self) -> str:
        """Return what was held back: the text has ended without completing a stop string."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        for index, (stop, failure) in enumerate(self._stops):
            length = self._lengths[index]
            while length and stop[length] != character:
                length = failure[length - 1]
            if stop[length] == character:
                length += 1
            if length == len(stop):
                return stop
            self._lengths[index] = length
        return None
