"""`QTensor`: a weight as stored. Only this module and the packers know the layouts behind a kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.spec import UnsupportedModelError

FLOAT_KINDS: Final = frozenset({"F32", "F16", "BF16"})
"""Kinds whose one plane holds the elements themselves (BF16 as uint16 bit patterns)."""


class Stored(NamedTuple):
    """How a tensor is stored, its elements unread: `kind` and `shape` as in `QTensor`."""

    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QTensor:
    """A tensor of `shape` (numpy order: [out features, in features]) in `kind`'s layout.

    kind: `F32`, `F16`, `BF16`, or a GGUF type such as `Q4_1`. planes: for float kinds one array of `shape`; for GGUF
    types one uint8 array [shape[0], bytes per row], as in the file. Arrays may be read-only views of a mapped file.
    """

    kind: str
    shape: tuple[int, ...]
    planes: tuple[NDArray[Any], ...]

    @property
    def nbytes(self) -> int:
        """Stored size in bytes."""
        return sum(plane.nbytes for plane in self.planes)

    def dequantize(self) -> NDArray[np.float32]:
        """Return float32 of `shape`. Raises UnsupportedModelError for a kind that cannot be read."""
        plane = self.planes[0]
        if self.kind == "F32":
            return np.asarray(plane, dtype=np.float32)
        if self.kind == "F16":
            return plane.astype(np.float32)
        if self.kind == "BF16":
            return bfloat16_to_float32(plane)
        # Imported where it is needed: a start that finds its weights packed needs it never.
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize as gguf_dequantize

        try:
            values = gguf_dequantize(plane, GGMLQuantizationType[self.kind])
        except (KeyError, NotImplementedError) as error:
            raise UnsupportedModelError(
                f"Weights of kind {self.kind} cannot be read; use a Q8_0, Q4_1, Q4_K_M, F16 or BF16 file of the model."
            ) from error
        return np.asarray(values, dtype=np.float32).reshape(self.shape)

    def take_rows(self, rows: NDArray[np.integer[Any]]) -> QTensor:
        """Return these rows of the tensor, in order: rows are stored whole, so nothing is requantised."""
        return QTensor(self.kind, (len(rows), *self.shape[1:]), tuple(plane[rows] for plane in self.planes))

    def take_one(self, index: int) -> QTensor:
        """Return one of the tensors that are stacked in this one's first dimension."""
        return QTensor(self.kind, self.shape[1:], tuple(plane[index] for plane in self.planes))


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen bfloat16 bit patterns (numpy has no such type): they are the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def aligned(data: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    """View bytes of a file as `dtype`; where they lie unaligned, and only then, they are copied."""
    if data.ctypes.data % dtype.itemsize:
        data = data.copy()
    return data.view(dtype)
