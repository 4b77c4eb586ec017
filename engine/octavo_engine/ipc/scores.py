"""Log-probabilities of tokens between the processes: one record a token, so that they are cut like the tokens.

    logprob float32 | rank int32 | as many times as alternatives were asked for: id int32, logprob float32

Little endian. Whoever passes them on does not read them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple


class TokenScore(NamedTuple):
    """What the model thought of a token. `rank` is 1 for the most probable; `top` are (id, logprob), the best first."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def record_bytes(alternatives: int) -> int:
    """Return the size of one token's record."""
    return 8 + 8 * alternatives


def read_scores(records: bytes, alternatives: int) -> list[TokenScore]:
    """Return the records' contents. Raises struct.error if they are no whole number of records."""
    scores = []
    for logprob, rank, *top in struct.iter_unpack("<fi" + "if" * alternatives, records):
        scores.append(TokenScore(logprob, rank, tuple(zip(top[::2], top[1::2], strict=True))))
    return scores
