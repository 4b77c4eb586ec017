"""Write LoRA adapters as PEFT does, and models that have them merged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from octavo_engine.model.adapter import adapted_shapes
from octavo_engine.model.names import huggingface_name
from octavo_engine.model.spec import ModelSpec

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path, model: Path, seed: int = 0, rank: int = 4, modules: Sequence[str] = MODULES, **config: Any
) -> Path:
    """Write an adapter for a Hugging Face folder, of random factors that move its logits far."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.split(".")[-1] not in modules:
            continue
        n, k = weight.shape
        tensors[f"base_model.model.{module}.lora_A.weight"] = rng.normal(0, 0.2, (rank, k)).astype(np.float32)
        tensors[f"base_model.model.{module}.lora_B.weight"] = rng.normal(0, 0.2, (n, rank)).astype(np.float32)
    stated = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": list(modules), "bias": "none"}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(stated | config))
    return folder


def write_adapter_for(folder: Path, spec: ModelSpec, seed: int = 0, rank: int = 4) -> Path:
    """Write an adapter of every projection of an architecture, whatever its weights are stored as."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, NDArray[np.float32]] = {}
    for index, layer in enumerate(spec.layers):
        for part, (n, k) in adapted_shapes(spec, layer).items():
            module = huggingface_name(f"layers.{index}.{part}.weight", spec.architecture).removesuffix(".weight")
            a, b = rng.normal(0, 1, (rank, k)) / k**0.5, rng.normal(0, 0.2, (n, rank))
            tensors[f"base_model.model.{module}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"base_model.model.{module}.lora_B.weight"] = b.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    return folder


def merge_adapter(folder: Path, model: Path, adapter: Path, scales: Mapping[str, float]) -> Path:
    """Write the model whose weights have the adapter added. scales: by module, "" for all others."""
    weights, factors = load_file(model / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    merged = {}
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        a = factors.get(f"base_model.model.{module}.lora_A.weight")
        b = factors.get(f"base_model.model.{module}.lora_B.weight")
        scale = scales.get(module.split(".")[-1], scales[""])
        merged[name] = weight if a is None or b is None else (weight + scale * (b @ a)).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(merged, folder / "model.safetensors")
    (folder / "config.json").write_text((model / "config.json").read_text())
    return folder
