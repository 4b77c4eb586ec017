"""`adapter_config.json`: every key of PEFT's that changes what an adapter computes is honoured, or refused by name.

The keys are those of PEFT 0.21's `LoraConfig`. One that is not known here may change anything: it is refused if it says
anything at all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from octavo_engine.model.safetensors import read_json
from octavo_engine.model.spec import UnsupportedModelError

CONFIG: Final = "adapter_config.json"

_Value = TypeVar("_Value")

_REFUSED: Final = {
    "use_dora": "decomposes weights as DoRA does",
    "lora_bias": "trains biases",
    "modules_to_save": "replaces whole modules",
    "trainable_token_indices": "adds tokens",
    "target_parameters": "adapts bare parameters",
    "fan_in_fan_out": "was made for transposed weights",
    "alora_invocation_tokens": "takes effect after an invocation only, as activated LoRA does",
    "use_qalora": "pools its inputs as QA-LoRA does",
    "layer_replication": "repeats layers",
}
_REFUSED_OBJECTS: Final = {
    "use_bdlora": "has block-diagonal factors as BD-LoRA has",
    "arrow_config": "chooses among adapters as Arrow does",
    "kasa_config": "truncates the model's own weights as KaSA does",
    "monteclora_config": "samples its weights as MonteCLoRA does",
}
"""An empty object turns these on, with all defaults."""
_PLAIN_INITS: Final = ("gaussian", "eva", "orthogonal", "mica")
"""What weights begin with is no matter once they are trained. Other methods (PiSSA, OLoRA, CorDA, LoRA-GA, LoftQ) take
what the factors begin with out of the model's own weights: they are right beside those weights only."""
_WITHOUT_EFFECT: Final = frozenset(
    {
        # What it was trained on, with and by.
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "peft_version", "revision"),
        *("task_type", "corda_config", "ensure_weight_tying", "eva_config", "loftq_config", "lora_ga_config"),
        "velora_config",
        # How it is computed, with the same result; and the size of what `use_qalora` turns on.
        *("megatron_config", "megatron_core", "merge_weights", "qalora_group_size", "runtime_config"),
    }
)


class AdapterConfig(msgspec.Struct, frozen=True):
    """What is honoured. Modules are named as in the model that was trained, `model.layers.3.self_attn.q_proj`."""

    r: Annotated[int, msgspec.Meta(ge=1)]
    lora_alpha: float
    use_rslora: bool | None = None
    rank_pattern: dict[str, Annotated[int, msgspec.Meta(ge=1)]] | None = None
    alpha_pattern: dict[str, float] | None = None
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None

    def rank(self, module: str) -> int:
        """Return the rank that a module's factors are said to have."""
        return _stated(self.rank_pattern, module, self.r)

    def scale(self, module: str) -> float:
        """Return what the product of a module's factors is multiplied by."""
        rank = self.rank(module)
        return _stated(self.alpha_pattern, module, self.lora_alpha) / (math.sqrt(rank) if self.use_rslora else rank)

    def targets(self, module: str) -> bool:
        """Return whether a module is among those that are adapted, as PEFT chooses them."""
        if self.exclude_modules and _names(self.exclude_modules, module):
            return False
        if self.target_modules is None or self.target_modules == "all-linear":
            return True
        return _names(self.target_modules, module) and (
            isinstance(self.target_modules, str) or self._transforms_layer_of(module)
        )

    def _transforms_layer_of(self, module: str) -> bool:
        stated = self.layers_to_transform
        if stated is None or stated == []:
            return True
        for pattern in _layer_patterns(self.layers_pattern):
            if match := re.match(pattern, module):
                return int(match["index"]) in ([stated] if isinstance(stated, int) else stated)
        return False


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read an adapter's configuration. Raises UnsupportedModelError with a sentence for the user, OSError."""
    path = folder / CONFIG
    stated = read_json(path, "save the adapter again")
    _refuse(stated, folder)
    try:
        config = msgspec.convert(stated, AdapterConfig)
        _check_patterns(config)
    except (msgspec.ValidationError, re.error) as error:
        raise UnsupportedModelError(f"{path} is not as PEFT saves it ({error}); save the adapter again.") from error
    for key, alpha in {"lora_alpha": config.lora_alpha, **(config.alpha_pattern or {})}.items():
        if not math.isfinite(alpha):
            raise UnsupportedModelError(f"{path} states an alpha of {alpha} ('{key}'); save the adapter again.")
    return config


def _refuse(stated: Mapping[str, Any], folder: Path) -> None:
    """Refuse what would change what an adapter computes."""
    if (kind := stated.get("peft_type")) != "LORA":
        raise _not_served(folder, f"is of the kind {kind}, not LORA")
    for key, value in stated.items():
        if (key in _REFUSED and value) or (key in _REFUSED_OBJECTS and value not in (None, False)):
            raise _not_served(folder, f"{_REFUSED.get(key) or _REFUSED_OBJECTS[key]} ({key})")
    if (bias := stated.get("bias", "none")) != "none":
        raise _not_served(folder, f"trains biases (bias: {bias})")
    init = stated.get("init_lora_weights")
    if init not in (None, True, False, *_PLAIN_INITS):
        raise UnsupportedModelError(
            f"The adapter in {folder} changes the model's own weights (init_lora_weights: {init}), which is not "
            "served; have PEFT convert it while it saves it (path_initial_model_for_weight_conversion), or merge it."
        )
    honoured = {*AdapterConfig.__struct_fields__, "peft_type", "bias", "init_lora_weights"}
    for key in stated.keys() - honoured - _REFUSED.keys() - _REFUSED_OBJECTS.keys() - _WITHOUT_EFFECT:
        if stated[key]:
            raise UnsupportedModelError(
                f"The adapter in {folder} states '{key}', which is not known here and may change what it computes; if "
                f"it does not, take it out of {CONFIG}, otherwise merge the adapter."
            )


def _not_served(folder: Path, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The adapter in {folder} {what}, which is not served; train a plain LoRA adapter, or merge it."
    )


def _check_patterns(config: AdapterConfig) -> None:
    """Raise re.error for a pattern that is none."""
    for pattern in (*(config.rank_pattern or ()), *(config.alpha_pattern or ())):
        re.compile(f"({pattern})")
    for names in (config.target_modules, config.exclude_modules):
        if isinstance(names, str):
            re.compile(names)
    for pattern in _layer_patterns(config.layers_pattern):
        re.compile(pattern)


def _layer_patterns(stated: Sequence[str] | str | None) -> list[str]:
    """Return patterns for the beginning of a module's name, up to the number of its layer."""
    lists = [stated] if isinstance(stated, str) else stated
    return [rf"(?:^|.*?\.){name}\.(?P<index>\d+)\." for name in lists or [r"[^.]*"]]


def _names(names: Sequence[str] | str, module: str) -> bool:
    """Return whether a list of module names' ends, or a pattern for whole names, names a module."""
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _stated(patterns: Mapping[str, _Value] | None, module: str, otherwise: _Value) -> _Value:
    """Return the value of the first pattern that ends a module's name, as PEFT matches them."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return otherwise
