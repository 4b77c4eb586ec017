"""Read a GGUF file (mapped, not loaded) as a `Checkpoint`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.checkpoint import Checkpoint
from octavo_engine.model.gguf_metadata import GGUFError, TensorPlace, read_gguf_header
from octavo_engine.model.names import gguf_name
from octavo_engine.model.qtensor import QTensor, Stored, aligned
from octavo_engine.model.spec import (
    AttentionSpec,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    NormSpec,
    RopeSpec,
    UnsupportedModelError,
)

_ELEMENTS: Final[dict[str, np.dtype[Any]]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


class GGUFFile:
    """Metadata and tensors of one GGUF file. Raises UnsupportedModelError if the file is damaged or cut short."""

    def __init__(self, path: Path) -> None:
        try:
            self._metadata, self._places = read_gguf_header(path)
        except GGUFError as error:
            raise UnsupportedModelError(str(error)) from error
        self._data: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def metadata(self, key: str, default: Any = None) -> Any:
        """Return a metadata value as Python data, or the default."""
        return self._metadata.get(key, default)

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
        place = self._places.get(name)
        if place is None:
            raise UnsupportedModelError(f"The GGUF file has no tensor '{name}'; it is damaged, download it again.")
        return place

    def main_kind(self) -> str:
        """Return the kind that most tensors of two dimensions are stored in."""
        kinds = Counter(place.kind for place in self._places.values() if len(place.shape) == 2)
        return kinds.most_common(1)[0][0] if kinds else "F32"


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file of a served architecture."""
    file = GGUFFile(path)
    architecture = file.metadata("general.architecture")
    experts = bool(file.metadata(f"{architecture}.expert_count", 0))
    if architecture != "llama" or experts:
        raise UnsupportedModelError(
            f"GGUF architecture '{architecture}'{' with experts' if experts else ''} is not served yet; "
            "the served one is 'llama' (Llama, SmolLM2 and models converted as such)."
        )
    spec = llama_spec(file)

    def tensor(name: str) -> QTensor:
        stored = file.tensor(gguf_name(name))
        if name.endswith((".q.weight", ".k.weight", ".q.bias", ".k.bias")):
            attention = spec.layers[int(name.split(".")[1])].attention
            heads = attention.num_heads if ".q." in name else attention.num_kv_heads
            return stored.take_rows(half_rotation_rows(heads, attention.head_dim))
        return stored

    def describe(name: str) -> Stored:
        return file.describe(gguf_name(name))

    eos = file.metadata("tokenizer.ggml.eos_token_id")
    return Checkpoint(spec, describe, tensor, (path,), file.main_kind(), () if eos is None else (int(eos),))


def half_rotation_rows(num_heads: int, head_dim: int) -> NDArray[np.intp]:
    """Return the rows of a llama GGUF's q or k weight in the order of rotated halves.

    llama.cpp rotates neighbouring dimensions (2i, 2i + 1), so its converter interleaves each head's two halves; every
    other implementation rotates (i, i + head_dim / 2). Output row h·head_dim + j·head_dim/2 + i is stored at
    h·head_dim + 2i + j.
    """
    rows = np.arange(num_heads * head_dim, dtype=np.intp).reshape(num_heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def llama_spec(file: GGUFFile) -> ModelSpec:
    """Build the spec of `general.architecture = llama` from metadata and from which tensors exist."""

    def required(key: str) -> Any:
        value = file.metadata(f"llama.{key}")
        if value is None:
            raise UnsupportedModelError(f"The GGUF file lacks 'llama.{key}'; convert the model again.")
        return value

    hidden_size, num_heads = int(required("embedding_length")), int(required("attention.head_count"))
    head_dim = int(file.metadata("llama.attention.key_length", hidden_size // num_heads))
    norm = NormSpec(eps=float(required("attention.layer_norm_rms_epsilon")))
    layer = LayerSpec(
        attention=AttentionSpec(
            num_heads=num_heads,
            num_kv_heads=int(file.metadata("llama.attention.head_count_kv", num_heads)),
            head_dim=head_dim,
            rope=_rope(file, int(file.metadata("llama.rope.dimension_count", head_dim))),
            scale=head_dim**-0.5,
            qkv_bias="blk.0.attn_q.bias" in file,
            output_bias="blk.0.attn_output.bias" in file,
        ),
        mlp=MLPSpec(int(required("feed_forward_length")), bias="blk.0.ffn_down.bias" in file),
        attention_norm=norm,
        mlp_norm=norm,
    )
    return ModelSpec(
        architecture="llama",
        vocab_size=file.tensor(gguf_name("embedding.weight")).shape[0],
        hidden_size=hidden_size,
        max_position=int(required("context_length")),
        layers=(layer,) * int(required("block_count")),
        final_norm=norm,
        tied_embeddings=gguf_name("head.weight") not in file,
    )


def _rope(file: GGUFFile, dim: int) -> RopeSpec:
    theta = float(file.metadata("llama.rope.freq_base", 10000.0))
    if "rope_freqs.weight" in file:
        return RopeSpec(dim, theta, tuple(file.tensor("rope_freqs.weight").dequantize().tolist()))
    kind = file.metadata("llama.rope.scaling.type", "none")
    if kind == "linear":
        return RopeSpec(dim, theta, (float(file.metadata("llama.rope.scaling.factor")),) * (dim // 2))
    if kind != "none":
        raise UnsupportedModelError(
            f"Rotary scaling '{kind}' is not served yet; use a model with 'none' or 'linear' scaling."
        )
    return RopeSpec(dim, theta)
