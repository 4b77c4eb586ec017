"""The same weights in the formats that peers read: a GGUF as a bf16 folder in Hugging Face's layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE

from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.model.checkpoint import Checkpoint
from octavo_engine.model.gguf import open_gguf
from octavo_engine.model.gguf_metadata import read_gguf_metadata
from octavo_engine.model.names import huggingface_name
from octavo_engine.model.spec import RopeSpec, UnsupportedModelError
from octavo_engine.server.tokenizer import splits

_LAYER: Final = ("attention_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down")
_SPECIAL_TYPES: Final = (2, 3)
"""`tokenizer.ggml.token_type` of unknown and control tokens."""


class ModelFiles(NamedTuple):
    """One model: the GGUF file, and where what is made from it lies."""

    gguf: Path
    folder: Path

    @property
    def safetensors(self) -> Path:
        """The bf16 folder."""
        return self.folder / f"{self.gguf.stem}-bf16"

    def requantized(self, kind: str) -> Path:
        """The GGUF of another kind, such as Q8_0."""
        return self.folder / f"{self.gguf.stem}-{kind}.gguf"


def make_safetensors(files: ModelFiles) -> Path:
    """Write the bf16 folder if it is not there; return it. Raises PeerError for a model it cannot express."""
    target = files.safetensors
    if target.is_dir():
        return target
    try:
        checkpoint = open_gguf(files.gguf)
        metadata = read_gguf_metadata(files.gguf)
    except (UnsupportedModelError, OSError, ValueError) as error:
        raise PeerError(f"{files.gguf} cannot be written as safetensors: {error}") from error
    if checkpoint.spec.architecture != "llama" or metadata.get("tokenizer.ggml.model") != "gpt2":
        raise PeerError(
            f"{files.gguf.name} is no llama model with a byte-level vocabulary: only such a GGUF is written as "
            "safetensors for the peers that need them."
        )
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_bfloat16(partial / "model.safetensors", {name: to_bfloat16(values) for name, values in _tensors(checkpoint)})
    _write_json(partial / "config.json", config(checkpoint))
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    tokenizer(metadata).save(str(partial / "tokenizer.json"))
    _write_json(
        partial / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[metadata.get("tokenizer.ggml.bos_token_id", 0)],
            "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
            "model_max_length": checkpoint.spec.max_position,
        },
    )
    partial.rename(target)
    return target


def config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return Hugging Face's configuration of a llama."""
    spec = checkpoint.spec
    layer = spec.layers[0]
    rope = layer.attention.rope
    if rope != RopeSpec(rope.dim, rope.theta):
        raise PeerError("The model scales its rotary positions, which is not written as safetensors yet.")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": layer.mlp.intermediate_size,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": layer.attention.num_heads,
        "num_key_value_heads": layer.attention.num_kv_heads,
        "head_dim": layer.attention.head_dim,
        "max_position_embeddings": spec.max_position,
        "rms_norm_eps": layer.attention_norm.eps,
        "rope_theta": layer.attention.rope.theta,
        "tie_word_embeddings": spec.tied_embeddings,
        "hidden_act": "silu",
        "eos_token_id": list(checkpoint.eos_token_ids),
    }


def tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    """Return the vocabulary as a byte-level BPE that turns token ids into text as the model's own does."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    made = Tokenizer(BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = splits.pre_tokenizer(metadata.get("tokenizer.ggml.pre", "default"))
    made.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in _SPECIAL_TYPES]
    made.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return made


def _tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, NDArray[np.float32]]]:
    names = ["embedding", "final_norm", *([] if checkpoint.spec.tied_embeddings else ["head"])]
    names += [f"layers.{index}.{part}" for index in range(len(checkpoint.spec.layers)) for part in _LAYER]
    for name in names:
        yield huggingface_name(f"{name}.weight"), checkpoint.tensor(f"{name}.weight").dequantize()


def write_bfloat16(path: Path, tensors: dict[str, NDArray[np.uint16]]) -> None:
    """Write a safetensors file of bfloat16 bit patterns: numpy has no such type, so the library's numpy side has none.

    The format: eight bytes with the header's length, the header in JSON, the tensors one after the other.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [end, end + bits.nbytes]}
        end += bits.nbytes
    text = json.dumps(header).encode()
    # Readers map the tensors: they begin at a multiple of eight bytes.
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for bits in tensors.values():
            stream.write(bits.astype("<u2", copy=False).tobytes())


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to bfloat16 bit patterns, to nearest, ties to even. Values are finite."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    odd = (bits >> 16) & 1
    return ((bits + np.uint32(0x7FFF) + odd) >> 16).astype(np.uint16)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
