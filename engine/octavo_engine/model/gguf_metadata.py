"""What stands before the tensors of a GGUF file: metadata, and where each tensor lies.

`gguf.GGUFReader` keeps one numpy view per string (seconds and 200 MB for a vocabulary of 49,152), in each of the two
processes; the format is short enough to be read here. Layout:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

_MAGIC: Final = b"GGUF"
_SCALARS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9
_DEFAULT_ALIGNMENT: Final = 32

# Name, elements of a block, bytes of a block, by the number that stands in the file.
_KINDS: Final = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}  # fmt: skip

_Result = TypeVar("_Result")


class GGUFError(ValueError):
    """The file is not a GGUF that can be read; the message says what to do."""


class TensorPlace(NamedTuple):
    """A tensor as stored: its kind, its shape (outermost dimension first), and its bytes in the file."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class GGUFHeader(NamedTuple):
    """Every key of the file's metadata, arrays as lists, and where the tensors lie."""

    metadata: dict[str, Any]
    places: dict[str, TensorPlace]


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Return every key of the file's metadata. Raises GGUFError, OSError."""
    return _read(path, lambda cursor: cursor.metadata()[1])


def read_gguf_header(path: Path) -> GGUFHeader:
    """Return metadata and tensor places. Raises GGUFError, OSError."""

    def read(cursor: _Cursor) -> GGUFHeader:
        count, metadata = cursor.metadata()
        return GGUFHeader(metadata, cursor.places(count, metadata))

    return _read(path, read)


def _read(path: Path, read: Callable[[_Cursor], _Result]) -> _Result:
    with path.open("rb") as file:
        try:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise GGUFError(f"{path} is empty: download the model again.") from None
        with view:
            try:
                return read(_Cursor(view))
            except (struct.error, UnicodeDecodeError, LookupError, MemoryError, RecursionError) as error:
                raise GGUFError(f"{path} is damaged in its metadata ({error}): download the model again.") from error
            except GGUFError as error:
                raise GGUFError(f"{path} {error}") from None


class _Cursor:
    """A position in the file's bytes."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def metadata(self) -> tuple[int, dict[str, Any]]:
        """Return how many tensors there are, and every key."""
        if self._data[:4] != _MAGIC:
            raise GGUFError("is not a GGUF file: name a .gguf file or a Hugging Face folder.")
        self._at = 4
        version = self._scalar("<I")
        if version not in (2, 3):
            raise GGUFError(f"has GGUF version {version}: versions 2 and 3 (little endian) can be read.")
        tensors = self._scalar("<Q")
        count = self._scalar("<Q")
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._string()
            found[key] = self._value(self._scalar("<I"))
        return tensors, found

    def places(self, count: int, metadata: dict[str, Any]) -> dict[str, TensorPlace]:
        """Return where each tensor lies; dimensions stand in the file innermost first."""
        listed: list[tuple[str, TensorPlace]] = []
        for _ in range(count):
            name = self._string()
            dimensions = [self._scalar("<Q") for _ in range(self._scalar("<I"))]
            number, offset = self._scalar("<I"), self._scalar("<Q")
            if number not in _KINDS:
                raise GGUFError(f"holds weights of an unknown kind ({number}): use a Q8_0, Q4_1 or Q4_K_M file.")
            kind, elements, size = _KINDS[number]
            if not dimensions or dimensions[0] % elements:
                raise GGUFError(f"holds a tensor '{name}' of broken blocks: download the model again.")
            nbytes = math.prod(dimensions) // elements * size
            listed.append((name, TensorPlace(kind, tuple(reversed(dimensions)), offset, nbytes)))
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise GGUFError("does not say where its tensors begin: download the model again.")
        start = -(-self._at // alignment) * alignment
        if any(start + place.offset + place.nbytes > len(self._data) for _, place in listed):
            raise GGUFError("is shorter than its tensors: it is not whole, download it again.")
        return {name: place._replace(offset=start + place.offset) for name, place in listed}

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
        unpack: Callable[[Any, int], tuple[int]] = struct.Struct("<Q").unpack_from
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
