"""LoRA adapters as PEFT saves them: `adapter_config.json` beside `adapter_model.safetensors` (Hu et al., 2021)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from octavo_engine.model.digest import model_digest
from octavo_engine.model.names import huggingface_name
from octavo_engine.model.qtensor import QTensor
from octavo_engine.model.safetensors import SafetensorsFile, read_json
from octavo_engine.model.spec import LayerSpec, ModelSpec, UnsupportedModelError

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
MOST_RANKS: Final = 512
"""Beyond it an adapter's products cost as much as the model's own."""
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
    config = read_json(folder / CONFIG)
    _check(config, folder)
    factors = _factors(SafetensorsFile(folder / WEIGHTS), folder, spec)
    parts = {name: _part(name, module, a, b, config) for name, (module, a, b) in factors.items()}
    for name, part in parts.items():
        _check_shape(name, part, adapted_shapes(spec, spec.layers[int(name.split(".")[1])])[name.split(".")[2]])
    return Adapter(model_digest((folder / CONFIG, folder / WEIGHTS)), parts)


def _check(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse what would change what an adapter computes."""
    kind = config.get("peft_type")
    refused = {
        f"is of the kind {kind}, not LORA": kind != "LORA",
        "decomposes weights (DoRA)": config.get("use_dora"),
        "trains biases": config.get("bias", "none") != "none" or config.get("lora_bias"),
        "replaces whole modules (modules_to_save)": config.get("modules_to_save"),
        "adds tokens (trainable_token_indices)": config.get("trainable_token_indices"),
        "was made for transposed weights (fan_in_fan_out)": config.get("fan_in_fan_out"),
    }
    for what, present in refused.items():
        if present:
            raise UnsupportedModelError(
                f"The adapter in {folder} {what}, which is not served; train a plain LoRA adapter, or merge it."
            )


def _factors(file: SafetensorsFile, folder: Path, spec: ModelSpec) -> dict[str, tuple[str, QTensor, QTensor]]:
    """Return (module, a, b) by our names."""
    ours = {
        huggingface_name(f"layers.{index}.{part}.weight", spec.architecture).removesuffix(".weight"): (index, part)
        for index, layer in enumerate(spec.layers)
        for part in adapted_shapes(spec, layer)
    }
    found: dict[str, dict[str, QTensor]] = {}
    for name in sorted(file.header):
        match = _FACTOR.match(name.removeprefix(_PREFIX))
        if match is None or match[1] not in ours:
            raise UnsupportedModelError(
                f"The adapter in {folder} adapts '{name}', which is not served for this model; the query, key, value "
                "and output projections are, and those of feed-forward layers without experts."
            )
        found.setdefault(match[1], {})[match[2]] = file.tensor(name)
    if not found:
        raise UnsupportedModelError(f"The adapter in {folder} adapts nothing; save it again.")
    factors = {}
    for module, pair in found.items():
        if len(pair) != 2:
            raise UnsupportedModelError(f"The adapter in {folder} has one factor of '{module}' only; save it again.")
        index, part = ours[module]
        factors[f"layers.{index}.{part}"] = (module, pair["A"], pair["B"])
    return factors


def _part(name: str, module: str, a: QTensor, b: QTensor, config: Mapping[str, Any]) -> AdapterPart:
    if len(a.shape) != 2 or len(b.shape) != 2 or not 1 <= a.shape[0] <= MOST_RANKS:
        raise UnsupportedModelError(
            f"The adapter's factors of '{module}' have shapes {list(a.shape)} and {list(b.shape)}; "
            f"matrices of rank 1 to {MOST_RANKS} are served."
        )
    rank = a.shape[0]
    alpha = float(_stated(config.get("alpha_pattern"), module, config.get("lora_alpha", rank)))
    return AdapterPart(a, b, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _stated(patterns: Mapping[str, Any] | None, module: str, otherwise: Any) -> Any:
    """Return the value of the first pattern that ends a module's name, as PEFT matches them."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return otherwise


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


def _check_shape(name: str, part: AdapterPart, shape: tuple[int, int]) -> None:
    n, k = shape
    if part.a.shape != (part.rank, k) or part.b.shape != (n, part.rank):
        raise UnsupportedModelError(
            f"The adapter's factors of {name} have shapes {list(part.a.shape)} and {list(part.b.shape)} where the "
            f"model has [{n}, {k}]; it was trained for another model."
        )
