"""How embeddings look: OpenAI's list of vectors, each of length 1, as numbers or as base64 of little-endian float32."""

from __future__ import annotations

import math
from array import array
from base64 import b64encode
from collections.abc import Iterator, Sequence

import msgspec

_encode = msgspec.json.Encoder().encode


def unit_vector(pooled: bytes, dimensions: int = 0) -> array[float]:
    """Return a vector of float32 scaled to length 1, of its first `dimensions` numbers (0: of all); zeros stay."""
    numbers = array("f")
    numbers.frombytes(pooled)
    if dimensions:
        numbers = numbers[:dimensions]
    length = math.hypot(*numbers)
    return array("f", [number / length for number in numbers]) if length else numbers


def pieces(
    vectors: Sequence[bytes], model: str, prompt_tokens: int, dimensions: int = 0, base64: bool = False
) -> Iterator[bytes]:
    """Yield the answer's body in pieces, each vector one. `dimensions`: how many numbers of each, 0 for all."""
    yield b'{"object":"list","data":['
    for index, pooled in enumerate(vectors):
        vector = unit_vector(pooled, dimensions)
        shown = b64encode(vector.tobytes()).decode() if base64 else vector.tolist()
        entry = _encode({"object": "embedding", "index": index, "embedding": shown})
        yield b"," + entry if index else entry
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    yield b"]," + _encode({"model": model, "usage": usage})[1:]
