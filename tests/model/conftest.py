"""Models: the bundled one, and small random ones written as safetensors folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo_engine.model.pull import pull
from octavo_engine.worker.executable import Executable
from tests.model.building import build, build_in_cache

WriteModel = Callable[..., Path]


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return pull("bundled://smollm2-135m-instruct")


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Executable:
    """The bundled model as it is served: quantised weights, as stored."""
    return build_in_cache(smollm2_path, dtype="auto")


def write_random_llama(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Write a Hugging Face folder of random weights, large enough that wrong arithmetic shows in the logits."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 131,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        **overrides,
    }
    rng = np.random.default_rng(seed)
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_size, kv_size = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_proj.weight": (q_size, hidden),
            f"{at}.self_attn.k_proj.weight": (kv_size, hidden),
            f"{at}.self_attn.v_proj.weight": (kv_size, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, q_size),
            f"{at}.mlp.gate_proj.weight": (inner, hidden),
            f"{at}.mlp.up_proj.weight": (inner, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, inner),
        }
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def random_llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_llama(tmp_path_factory.mktemp("random-llama"))


PRECISIONS: dict[str, dict[str, str]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, int8 cache": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "int8": {"dtype": "auto", "quantization": "int8"},
    "int8, bfloat16 cache": {"dtype": "auto", "quantization": "int8", "kv_cache_dtype": "bfloat16"},
    "int4": {"dtype": "auto", "quantization": "int4"},
}


@pytest.fixture(scope="session", params=PRECISIONS.values(), ids=PRECISIONS.keys())
def random_llama(request: pytest.FixtureRequest, random_llama_folder: Path) -> Executable:
    return build(random_llama_folder, **request.param)
