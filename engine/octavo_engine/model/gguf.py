"""Read a GGUF file (mapped, not loaded) as a `Checkpoint`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.checkpoint import Checkpoint
from octavo_engine.model.gguf_metadata import GGUFError, TensorPlace, read_gguf_header
from octavo_engine.model.gguf_spec import served_architecture, spec_from_gguf
from octavo_engine.model.names import gguf_name
from octavo_engine.model.pooling import pooling_from_gguf
from octavo_engine.model.qtensor import QTensor, Stored, aligned
from octavo_engine.model.spec import UnsupportedModelError

_ELEMENTS: Final[dict[str, np.dtype[Any]]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}

_ROPE_DIVISORS: Final = "rope_freqs.weight"


class GGUFFile:
    """`metadata` and the `places` of the tensors of one GGUF file.

    Raises UnsupportedModelError if the file is damaged or cut short.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.metadata, self.places = read_gguf_header(path)
        except GGUFError as error:
            raise UnsupportedModelError(str(error)) from error
        self._data: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")

    def describe(self, name: str) -> Stored:
        """Return a tensor's kind and shape."""
        place = self._place(name)
        return Stored(place.kind, place.shape)

    def tensor(self, name: str) -> QTensor:
        """Return a tensor by the file's own name; its plane is a view of the mapped file."""
        kind, shape, offset, nbytes = self._place(name)
        data = self._data[offset : offset + nbytes]
        if kind in _ELEMENTS:
            return QTensor(kind, shape, (aligned(data, _ELEMENTS[kind]).reshape(shape),))
        return QTensor(kind, shape, (data.reshape(*shape[:-1], -1),))

    def _place(self, name: str) -> TensorPlace:
        place = self.places.get(name)
        if place is None:
            raise UnsupportedModelError(f"The GGUF file has no tensor '{name}'; it is damaged, download it again.")
        return place

    def main_kind(self) -> str:
        """Return the kind that most tensors of two dimensions are stored in."""
        kinds = Counter(place.kind for place in self.places.values() if len(place.shape) == 2)
        return kinds.most_common(1)[0][0] if kinds else "F32"


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file of a served architecture."""
    file = GGUFFile(path)
    # First: a file that is no language model, such as a vision encoder, lacks the tensors that are asked for below.
    served_architecture(file.metadata)
    rope_divisors = file.tensor(_ROPE_DIVISORS).dequantize().tolist() if _ROPE_DIVISORS in file.places else []
    vocab_size = file.describe(gguf_name("embedding.weight")).shape[0]
    spec = spec_from_gguf(file.metadata, file.places, vocab_size, tuple(rope_divisors))
    interleaved = spec.architecture == "llama"

    def tensor(name: str) -> QTensor:
        stored = file.tensor(gguf_name(name))
        if (expert := _expert(name)) is not None:
            return stored.take_one(expert)
        if interleaved and name.endswith((".q.weight", ".k.weight", ".q.bias", ".k.bias")):
            attention = spec.layers[int(name.split(".")[1])].attention
            heads = attention.num_heads if ".q." in name else attention.num_kv_heads
            return stored.take_rows(half_rotation_rows(heads, attention.head_dim))
        return stored

    def describe(name: str) -> Stored:
        kind, shape = file.describe(gguf_name(name))
        return Stored(kind, shape if _expert(name) is None else shape[1:])

    # A chat model ends its turn with one, a text with the other.
    ends = (file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot"))
    eos_token_ids = tuple(dict.fromkeys(int(token) for token in ends if token is not None))
    pooling = pooling_from_gguf(file.metadata)
    return Checkpoint(spec, describe, tensor, (path,), file.main_kind(), eos_token_ids, pooling)


def _expert(name: str) -> int | None:
    """Return which expert's tensor a name is of, None for what is no expert's."""
    parts = name.split(".")
    return int(parts[3]) if parts[0] == "layers" and parts[2] == "experts" else None


def half_rotation_rows(num_heads: int, head_dim: int) -> NDArray[np.intp]:
    """Return the rows of a llama GGUF's q or k weight in the order of rotated halves.

    llama.cpp rotates neighbouring dimensions (2i, 2i + 1), so its converter interleaves each head's two halves; every
    other implementation rotates (i, i + head_dim / 2). Output row h·head_dim + j·head_dim/2 + i is stored at
    h·head_dim + 2i + j.
    """
    rows = np.arange(num_heads * head_dim, dtype=np.intp).reshape(num_heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)
