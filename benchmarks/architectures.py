"""Is every architecture as fast as Llama for the multiply-adds it needs? Ratios of prefill rates, taken by turns.

    python benchmarks/architectures.py [--dtype bfloat16] [--quantization int8] [--rounds 5] [--tokens 512]

Models of random weights, all of about the same sizes, saved as `transformers` saves them and loaded as any model is. A
step prefills one prompt; its rate is multiply-adds of the weight products a second, by the model's own specification.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from tests.model.building import build
from tests.model.stepping import Part, build_step, run_step
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from octavo_engine.bench.limits import Work, work_of
from octavo_engine.bench.machine import describe_machine
from octavo_engine.worker.executable import Executable

SIZES: dict[str, Any] = {
    "vocab_size": 8192, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8,
    "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 4096,
}  # fmt: skip
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "mistral": (MistralConfig, {"sliding_window": 256}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {}),
    "gemma3": (Gemma3TextConfig, {"sliding_window": 256}),
    "mixtral": (MixtralConfig, {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen3 moe": (Qwen3MoeConfig, {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 768}),
}
GOAL = 0.8


def make(name: str, folder: Path, options: argparse.Namespace) -> Executable:
    """Return a model of random weights, with a cache for one prompt."""
    torch.manual_seed(0)
    config, changes = MODELS[name]
    AutoModelForCausalLM.from_config(config(**(SIZES | changes)), dtype=torch.bfloat16).save_pretrained(folder)
    model = build(folder, dtype=options.dtype, quantization=options.quantization, max_model_len=4096)
    model.layout.allocate([-(-options.tokens // 16)] * len(model.layout.groups))
    return model


def seconds(model: Executable, tokens: int) -> float:
    """Return the wall of a step that prefills `tokens` tokens."""
    prompt = np.random.default_rng(0).integers(0, model.vocab_size, tokens).tolist()
    step = build_step([Part(list(range(-(-tokens // 16))), prompt, 0)], groups=len(model.layout.groups))
    began = time.perf_counter()
    run_step(model, step)
    return time.perf_counter() - began


def main() -> int:
    """Print each architecture's rate and its ratio to Llama's; exit 1 if one is below the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in MODELS}
    with tempfile.TemporaryDirectory() as place:
        models = {name: make(name, Path(place) / name.replace(" ", "-"), options) for name in MODELS}
        for repetition in range(options.rounds + 1):
            for name, model in models.items():
                work = work_of(model)
                assert isinstance(work, Work)
                rate = work.multiply_adds(options.tokens, 1) / seconds(model, options.tokens)
                if repetition:  # the first warms up
                    rates[name].append(rate)
    print(f"prefill of {options.tokens}, {options.dtype}, quantization {options.quantization}, {options.rounds} rounds")
    ratios = {
        name: median(rate / llama for rate, llama in zip(found, rates["llama"], strict=True))
        for name, found in rates.items()
    }
    for name, ratio in ratios.items():
        print(f"{name:10} {median(rates[name]) * 2e-9:8.0f} GOP/s   {ratio:.2f} × llama's per multiply-add")
    print(describe_machine().sentence())
    return 0 if min(ratios.values()) >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
