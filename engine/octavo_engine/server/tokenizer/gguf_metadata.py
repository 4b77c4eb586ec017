"""Reads a GGUF file's key-value section: the tokenizer's whole input, without tensors and without the `gguf` package.

`gguf.GGUFReader` keeps one numpy view per string (2.5 s and 200 MB for a vocabulary of 49,152); the API process needs
the strings only. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, Final

_MAGIC: Final = b"GGUF"
_SCALARS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9


class GGUFError(ValueError):
    """The file is not a GGUF this reader understands."""


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Return every key of the file's metadata; arrays become lists. Raises `GGUFError`, OSError."""
    with path.open("rb") as file:
        try:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise GGUFError(f"{path} is empty: download the model again.") from None
        with view:
            try:
                return _Cursor(view).metadata()
            except (struct.error, UnicodeDecodeError, IndexError, KeyError) as error:
                raise GGUFError(f"{path} is damaged in its metadata ({error}): download the model again.") from error
            except GGUFError as error:
                raise GGUFError(f"{path} {error}") from None


class _Cursor:
    """A position in the file's bytes."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def metadata(self) -> dict[str, Any]:
        if self._data[:4] != _MAGIC:
            raise GGUFError("is not a GGUF file: name a .gguf file or a Hugging Face folder.")
        self._at = 4
        version = self._scalar("<I")
        if version not in (2, 3):
            raise GGUFError(f"has GGUF version {version}: versions 2 and 3 (little endian) can be read.")
        self._scalar("<Q")  # number of tensors
        count = self._scalar("<Q")
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._string()
            found[key] = self._value(self._scalar("<I"))
        return found

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind = self._scalar("<I")
        length = self._scalar("<Q")
        if length > len(self._data):
            raise GGUFError(f"claims an array of {length} values, more than the file holds: download the model again.")
        if kind == _STRING:
            return self._strings(length)
        if kind == _ARRAY:
            return [self._array() for _ in range(length)]
        form = f"<{length}{_SCALARS[kind][1]}"
        values = list(struct.unpack_from(form, self._data, self._at))
        self._at += struct.calcsize(form)
        return values

    def _strings(self, count: int) -> list[str]:
        # The hot loop of loading (about 100,000 strings): local names, no calls into the methods above.
        data, at = self._data, self._at
        unpack = struct.Struct("<Q").unpack_from
        found = []
        for _ in range(count):
            (length,) = unpack(data, at)
            at += 8
            piece = data[at : at + length]
            if len(piece) != length:
                raise GGUFError("ends within its metadata: download the model again.")
            found.append(piece.decode("utf-8"))
            at += length
        self._at = at
        return found

    def _string(self) -> str:
        return self._strings(1)[0]

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value
