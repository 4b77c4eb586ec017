"""Which endpoint probably holds which prefix: what was sent where, forgotten as the engine forgets.

The picker has no tokenizer: a prefix is named by chained digests of its text in chunks of CHUNK_BYTES under the
tenant's salt (design.md section 7). The index takes any chained digests: the simulator feeds it the trace's blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Final, NamedTuple

DIGEST_BYTES: Final = 16
CHUNK_BYTES: Final = 256
DIGESTED_BYTES: Final = 16 * 1024
"""No more of a request's text is digested; what follows is only counted (`Wanted.tail`)."""
CHUNK_TOKENS: Final = 64
"""About what CHUNK_BYTES of text are for the tokenizers in use, at four bytes a token."""
MOST_ENTRIES: Final = 32_768
"""Bounds the memory of one endpoint's index (about 5 MB), whatever cache the endpoint reports."""


class Prefix(NamedTuple):
    """The digests of a text's full chunks, first to last, and the number of full chunks that were not digested."""

    digests: tuple[bytes, ...]
    tail: int


def digest_text(text: bytes, salt: str) -> Prefix:
    """Return the prefix of `text`: a digest covers everything up to its chunk's end, and the salt."""
    data = salt.encode("utf-8", "surrogatepass")
    parent = blake2b(data, digest_size=DIGEST_BYTES, person=b"octavo prefix").digest()
    digests = []
    chunks = len(text) // CHUNK_BYTES
    for start in range(0, min(chunks * CHUNK_BYTES, DIGESTED_BYTES), CHUNK_BYTES):
        parent = blake2b(parent + text[start : start + CHUNK_BYTES], digest_size=DIGEST_BYTES).digest()
        digests.append(parent)
    return Prefix(tuple(digests), chunks - len(digests))


class PrefixIndex:
    """The prefixes of one endpoint: least recently used first, bounded by the endpoint's cache and by MOST_ENTRIES.

    An entry is a digest with its weight in units (chunks or blocks): 1, and for the last digest of a request the units
    of its tail on top, because they take room in the endpoint's cache too.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._entries: OrderedDict[bytes, int] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    @property
    def weight(self) -> int:
        """Return the units all entries stand for."""
        return self._weight

    def matched(self, digests: tuple[bytes, ...], tail: int) -> int:
        """Return how many leading units of a request are believed to be cached.

        Where all digests are known, as much of the tail is believed as the longest request that ended on the same
        digest had: nearly always an earlier turn of the same conversation.
        """
        entries = self._entries
        count = 0
        for digest in digests:
            if digest not in entries:
                return count
            count += 1
        return count + min(tail, entries[digests[-1]] - 1) if digests else 0

    def add(self, digests: tuple[bytes, ...], tail: int, room: int) -> None:
        """Enter a request's prefix, then evict down to `room` units, the ends of prefixes before their beginnings."""
        entries = self._entries
        last = len(digests) - 1
        for place in range(last, -1, -1):
            digest = digests[place]
            before = entries.get(digest, 0)
            after = max(before, 1 + tail if place == last else 1)
            entries[digest] = after
            entries.move_to_end(digest)
            self._weight += after - before
        while entries and (self._weight > room or len(entries) > MOST_ENTRIES):
            _, weight = entries.popitem(last=False)
            self._weight -= weight
