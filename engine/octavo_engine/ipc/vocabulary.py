"""The model's tokens as bytes, from the API process to the engine: a file, read only if a request has a grammar.

The API process has them for detokenising, so that what a grammar sees is what the client is told. They are a few
megabytes that most engines never need: no message, and nothing in the engine's memory until then.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class Vocabulary(msgspec.Struct, frozen=True):
    """The bytes of each token id. `special` ids are never text, whatever their bytes."""

    tokens: list[bytes]
    special: tuple[int, ...] = ()


def write_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    """Write the file, whole or not at all. Raises OSError."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(msgspec.msgpack.encode(vocabulary))
    os.replace(part, path)


def read_vocabulary(path: Path) -> Vocabulary:
    """Read what `write_vocabulary` wrote. Raises OSError, msgspec.DecodeError."""
    return msgspec.msgpack.decode(path.read_bytes(), type=Vocabulary)
