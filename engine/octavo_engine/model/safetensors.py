"""Read a Hugging Face folder (config.json + safetensors, sharded or not) as a `Checkpoint`.

The files are mapped with numpy alone: the format is a JSON header and raw tensors, and the safetensors library's numpy
reader has no bfloat16.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.checkpoint import Checkpoint
from octavo_engine.model.config_spec import served_architecture, spec_from_config
from octavo_engine.model.names import huggingface_name
from octavo_engine.model.pooling import pooling_from_folder
from octavo_engine.model.qtensor import QTensor, Stored, aligned
from octavo_engine.model.spec import UnsupportedModelError

_STORED: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
_MAX_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""


Count = Annotated[int, msgspec.Meta(ge=0)]


class Entry(msgspec.Struct):
    """What a header says of a tensor. data_offsets: (begin, end) in bytes, from the header's end."""

    dtype: str
    shape: tuple[Count, ...]
    data_offsets: tuple[Count, Count]


class SafetensorsFile:
    """One mapped file. Raises UnsupportedModelError if its header does not describe its bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        size = path.stat().st_size
        with path.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
                raise UnsupportedModelError(f"{path} is not a complete safetensors file; download it again.")
            self.header = _entries(path, stream.read(length))
        self._data: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length)
        if any(entry.data_offsets[1] > self._data.size for entry in self.header.values()):
            raise UnsupportedModelError(f"{path} is shorter than its header says; download it again.")

    def describe(self, name: str) -> Stored:
        """Return a tensor's kind and shape."""
        entry = self.header[name]
        return Stored(entry.dtype, entry.shape)

    def tensor(self, name: str) -> QTensor:
        """Return a tensor as a view of the mapped file."""
        (kind, shape), entry = self.describe(name), self.header[name]
        if kind not in _STORED:
            raise UnsupportedModelError(
                f"Tensor '{name}' is stored as {kind}; use a checkpoint in F32, F16 or BF16, or a GGUF of the model."
            )
        begin, end = entry.data_offsets
        if end - begin != _STORED[kind].itemsize * math.prod(shape):
            raise UnsupportedModelError(f"Tensor '{name}' of {self.path} has the wrong size; download it again.")
        return QTensor(kind, shape, (aligned(self._data[begin:end], _STORED[kind]).reshape(shape),))


def _entries(path: Path, header: bytes) -> dict[str, Entry]:
    """Return what the header says, by the tensors' names."""
    try:
        stated = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        stated.pop("__metadata__", None)
        return {name: msgspec.json.decode(entry, type=Entry) for name, entry in stated.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnsupportedModelError(f"{path} has a damaged header ({error}); download it again.") from error


def open_safetensors(folder: Path) -> Checkpoint:
    """Open a Hugging Face folder of a served architecture."""
    config = read_json(folder / "config.json")
    # First: a model of another architecture may lack whatever else is asked for, and that is not what is wrong with it.
    served_architecture(config)
    files = _tensor_files(folder)
    index = {name: file for file in files for name in file.header}
    spec = spec_from_config(config, head_stored=huggingface_name("head.weight") in index)

    def locate(name: str) -> tuple[SafetensorsFile, str]:
        stored = huggingface_name(name, spec.architecture)
        if stored not in index and (bare := stored.removeprefix("model.")) in index:
            # A model saved without its head, as embedding models are, has no prefix.
            stored = bare
        if stored not in index:
            raise UnsupportedModelError(f"{folder} has no tensor '{stored}'; it is incomplete, download it again.")
        return index[stored], stored

    def tensor(name: str) -> QTensor:
        file, stored = locate(name)
        return file.tensor(stored)

    def describe(name: str) -> Stored:
        file, stored = locate(name)
        return file.describe(stored)

    covered = (folder / "config.json", *(file.path for file in files))
    kind, eos_token_ids = tensor("layers.0.q.weight").kind, _eos_token_ids(folder, config)
    return Checkpoint(spec, describe, tensor, covered, kind, eos_token_ids, pooling_from_folder(folder, config))


def _tensor_files(folder: Path) -> list[SafetensorsFile]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        stated = read_json(index).get("weight_map")
        if not isinstance(stated, dict) or not all(isinstance(name, str) for name in stated.values()):
            raise UnsupportedModelError(f"{index} does not say which file has which weights; download the model again.")
        names = sorted(set(stated.values()))
        if any(Path(name).name != name for name in names):
            raise UnsupportedModelError(f"{index} names files outside its folder; download the model again.")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise UnsupportedModelError(f"{folder} lacks {missing[0]}; download the model again.")
        return [SafetensorsFile(folder / name) for name in names]
    single = folder / "model.safetensors"
    if not single.is_file():
        raise UnsupportedModelError(f"{folder} has no model.safetensors; save the model in the safetensors format.")
    return [SafetensorsFile(single)]


def read_json(path: Path, remedy: str = "download the model again") -> dict[str, Any]:
    """Return a file's JSON object. Raises UnsupportedModelError, with the remedy for it, or OSError."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnsupportedModelError(f"{path} is not valid JSON ({error}); {remedy}.") from error
    if not isinstance(value, dict):
        raise UnsupportedModelError(f"{path} is not a JSON object; {remedy}.")
    return value


def _eos_token_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """`generation_config.json` wins over `config.json`: chat models list their end-of-turn token there only."""
    generation = folder / "generation_config.json"
    stated = read_json(generation).get("eos_token_id") if generation.is_file() else None
    eos = config.get("eos_token_id") if stated is None else stated
    if eos is None:
        return ()
    return tuple(int(token) for token in eos) if isinstance(eos, list) else (int(eos),)
