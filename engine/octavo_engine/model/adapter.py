"""LoRA adapters as PEFT saves them: `adapter_config.json` beside `adapter_model.safetensors` (Hu et al., 2021)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from octavo_engine.model.adapter_config import CONFIG, AdapterConfig, read_adapter_config
from octavo_engine.model.digest import model_digest
from octavo_engine.model.names import huggingface_name
from octavo_engine.model.qtensor import QTensor
from octavo_engine.model.safetensors import SafetensorsFile
from octavo_engine.model.spec import LayerSpec, ModelSpec, UnsupportedModelError

WEIGHTS: Final = "adapter_model.safetensors"
MOST_RANKS: Final = 512
"""Beyond it an adapter's products cost as much as the model's own."""
_LARGEST_FLOAT32: Final = float(np.finfo(np.float32).max)
_PREFIX: Final = "base_model.model."
_FACTOR: Final = re.compile(r"^(.+)\.lora_([AB])\.weight$")


class AdapterPart(NamedTuple):
    """What an adapter adds to one projection: scale · b · a, a [rank, in features] and b [out features, rank]."""

    a: QTensor
    b: QTensor
    scale: float

    @property
    def rank(self) -> int:
        """Columns of b."""
        return self.a.shape[0]


class Adapter(NamedTuple):
    """An adapter of a model; its parts by Octavo's names, `layers.N.{q,k,v,o,gate,up,down}`.

    digest: of its files, which is what tells its cached blocks from those of others.
    """

    digest: str
    parts: Mapping[str, AdapterPart]


def open_adapter(folder: Path, spec: ModelSpec) -> Adapter:
    """Open a PEFT folder (mapped, not loaded). Raises UnsupportedModelError with a sentence for the user."""
    if missing := [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]:
        raise UnsupportedModelError(
            f"There is no {missing[0]} in {folder}; give a folder as PEFT saves a LoRA adapter, in the safetensors "
            "format."
        )
    config = read_adapter_config(folder)
    modules = {
        huggingface_name(f"layers.{index}.{part}.weight", spec.architecture).removesuffix(".weight"): (
            f"layers.{index}.{part}",
            shape,
        )
        for index, layer in enumerate(spec.layers)
        for part, shape in adapted_shapes(spec, layer).items()
    }
    factors = _factors(SafetensorsFile(folder / WEIGHTS), folder, modules)
    parts = {}
    for module, (a, b) in factors.items():
        name, shape = modules[module]
        parts[name] = _part(folder, module, a, b, shape, config)
    _check_targets(factors, modules, config, folder)
    return Adapter(model_digest((folder / CONFIG, folder / WEIGHTS)), parts)


def _factors(file: SafetensorsFile, folder: Path, served: Collection[str]) -> dict[str, tuple[QTensor, QTensor]]:
    """Return (a, b) by the names of modules, all of them `served`."""
    found: dict[str, dict[str, QTensor]] = {}
    for name in sorted(file.header):
        match = _FACTOR.match(name.removeprefix(_PREFIX))
        if match is None or match[1] not in served:
            raise UnsupportedModelError(
                f"The adapter in {folder} adapts '{name}', which is not served for this model; the query, key, value "
                "and output projections are, and those of feed-forward layers without experts."
            )
        found.setdefault(match[1], {})[match[2]] = file.tensor(name)
    if not found:
        raise UnsupportedModelError(f"The adapter in {folder} adapts nothing; save it again.")
    for module, pair in found.items():
        if len(pair) != 2:
            raise UnsupportedModelError(f"The adapter in {folder} has one factor of '{module}' only; save it again.")
    return {module: (pair["A"], pair["B"]) for module, pair in found.items()}


def _part(
    folder: Path, module: str, a: QTensor, b: QTensor, shape: tuple[int, int], config: AdapterConfig
) -> AdapterPart:
    """Join a module's factors if everything that is said of them agrees. shape: the model's [out, in features]."""
    if len(a.shape) != 2 or len(b.shape) != 2 or not 1 <= a.shape[0] <= MOST_RANKS:
        raise UnsupportedModelError(
            f"The adapter's factors of '{module}' have shapes {list(a.shape)} and {list(b.shape)}; "
            f"matrices of rank 1 to {MOST_RANKS} are served."
        )
    rank = a.shape[0]
    if a.shape != (rank, shape[1]) or b.shape != (shape[0], rank):
        raise UnsupportedModelError(
            f"The adapter's factors of '{module}' have shapes {list(a.shape)} and {list(b.shape)} where the "
            f"model has {list(shape)}; it was trained for another model."
        )
    if rank != config.rank(module):
        raise UnsupportedModelError(
            f"The adapter in {folder} says in {CONFIG} that '{module}' has rank {config.rank(module)}, and its factors "
            f"have {rank}: the two files are of different adapters, save it again."
        )
    part = AdapterPart(a, b, config.scale(module))
    change = abs(part.scale) * rank * _largest(a) * _largest(b)
    # The other way round it would let NaN through.
    if not (change <= _LARGEST_FLOAT32 and abs(part.scale) <= _LARGEST_FLOAT32):
        raise UnsupportedModelError(
            f"The adapter in {folder} has weights of '{module}' that are not finite, or become so when multiplied; "
            "train it again."
        )
    return part


def _largest(factor: QTensor) -> float:
    """Return the greatest magnitude of a factor, NaN if one of its elements is."""
    return float(np.abs(factor.dequantize()).max())


def _check_targets(found: Collection[str], ours: Iterable[str], config: AdapterConfig, folder: Path) -> None:
    """Refuse factors of modules that are not to be adapted (PEFT would drop them), and the lack of those that are."""
    if config.target_modules is None:
        return
    for module in ours:
        if (module in found) != config.targets(module):
            states, has = ("leaves out", "has factors of it") if module in found else ("names", "has no factors of it")
            raise UnsupportedModelError(
                f"The adapter in {folder} {states} '{module}' in {CONFIG} (target_modules and the like), and {has}: "
                "the two files are of different adapters, save it again."
            )


def adapted_shapes(spec: ModelSpec, layer: LayerSpec) -> dict[str, tuple[int, int]]:
    """Return [out features, in features] of the projections that may be adapted."""
    attention, hidden, inner = layer.attention, spec.hidden_size, layer.mlp.intermediate_size
    shapes = {
        "q": (attention.q_size, hidden),
        "k": (attention.kv_size, hidden),
        "v": (attention.kv_size, hidden),
        "o": (hidden, attention.q_size),
    }
    if layer.mlp.moe is None:
        shapes |= {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    return shapes
