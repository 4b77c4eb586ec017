"""Both backends compute in float32 what `transformers` computes, on random small models and on the real one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MixtralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo_engine.model.spec import UnsupportedModelError
from octavo_engine.worker.executable import Executable
from tests.model.building import BACKENDS, build
from tests.model.exactness import compare
from tests.model.stepping import Part, generate, run, tables

SHAPES: dict[str, dict[str, Any]] = {
    "grouped queries": {"num_attention_heads": 6, "num_key_value_heads": 2},
    "one kv head": {"num_attention_heads": 4, "num_key_value_heads": 1},
    "no groups": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied embeddings": {"tie_word_embeddings": True},
    "odd sizes": {"vocab_size": 101, "intermediate_size": 37, "head_dim": 48, "num_attention_heads": 3,
                  "num_key_value_heads": 3},
    "wide heads": {"head_dim": 32, "num_hidden_layers": 1},
    "linear scaling": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama 3 scaling": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        }
    },
    "linear scaling, past the first training": {
        "max_position_embeddings": 128,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
    "yarn, past the first training": {
        "max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64,
        },
    },
    "yarn, everything said": {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 128,
            "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False,
        }
    },
    "yarn, its factor of attention stated": {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128,
            "attention_factor": 1.3,
        }
    },
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 8.0}

ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
FAMILIES: dict[str, Any] = {
    "mistral": (MistralConfig, {"sliding_window": None}),
    "mistral with a window": (MistralConfig, {"sliding_window": 40}),
    "qwen2": (Qwen2Config, {}),
    "qwen2 with windows": (Qwen2Config, {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1}),
    "qwen3": (Qwen3Config, {}),
    "qwen3, biases": (Qwen3Config, {"attention_bias": True, "tie_word_embeddings": True}),
    "gemma3": (Gemma3TextConfig, {"sliding_window": 32, "query_pre_attn_scalar": 20, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention"], "rope_parameters": ROPES}),
    "gemma3, logits capped": (Gemma3TextConfig, {"sliding_window": 16, "final_logit_softcapping": 2.0,
                                                 "head_dim": 32}),
    "mixtral": (MixtralConfig, {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen3 moe": (Qwen3MoeConfig, {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}),
    "qwen3 moe, shares normed": (Qwen3MoeConfig, {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
                                                  "moe_intermediate_size": 36}),
}  # fmt: skip


def random_model(family: str, seed: int, **changes: Any) -> PreTrainedModel:
    config, overrides = FAMILIES[family]
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 160, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "initializer_range": 0.2,
    }  # fmt: skip
    model = AutoModelForCausalLM.from_config(config(**(sizes | overrides | changes))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def random_llama(seed: int, **overrides: Any) -> LlamaForCausalLM:
    """Weights large enough that a wrong rotation or a missing bias moves the logits far."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 160, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "initializer_range": 0.2,
    }  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**(sizes | overrides))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def greedy(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    known = list(prompt)
    with torch.no_grad():
        for _ in range(num_tokens):
            known.append(int(model(torch.tensor([known])).logits[0, -1].argmax()))
    return known[len(prompt) :]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("overrides", SHAPES.values(), ids=SHAPES.keys())
def test_random_llama_gives_the_logits_and_tokens_of_transformers(
    overrides: dict[str, Any], backend: str, tmp_path: Path
) -> None:
    theirs = random_llama(3, **overrides)
    theirs.save_pretrained(tmp_path)
    check_equal(build(tmp_path, backend), theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_model_of_another_family_gives_the_logits_and_tokens_of_transformers(
    family: str, tmp_path: Path
) -> None:
    theirs = random_model(family, 5)
    theirs.save_pretrained(tmp_path)
    check_equal(build(tmp_path), theirs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("longest", [64, 400, 512])
def test_dynamic_scaling_is_fixed_by_the_longest_context(longest: int, backend: str, tmp_path: Path) -> None:
    theirs = random_llama(6, max_position_embeddings=64, rope_parameters=DYNAMIC)
    theirs.save_pretrained(tmp_path)
    rotary = theirs.model.rotary_emb
    rotary.inv_freq, _ = ROPE_INIT_FUNCTIONS["dynamic"](theirs.config, None, seq_len=longest)
    rotary.rope_type = "default"  # Otherwise every call would scale anew, for its own length.
    check_equal(build(tmp_path, backend, max_model_len=longest), theirs, lengths=(1, 16, 17, longest - 12))


@pytest.mark.parametrize("stated", [{}, {"max_model_len": 512}])
def test_dynamic_scaling_reaches_as_far_as_its_factor(stated: dict[str, int], tmp_path: Path) -> None:
    random_llama(6, max_position_embeddings=64, rope_parameters=DYNAMIC).save_pretrained(tmp_path)
    assert build(tmp_path, **stated).max_position == 512


def check_equal(ours: Executable, theirs: PreTrainedModel, lengths: Sequence[int] = (1, 16, 17, 300)) -> None:
    prompts = [[int(t) for t in np.random.default_rng(n).integers(0, ours.vocab_size, n)] for n in lengths]
    blocks = max(20, -(-max(lengths) // 16) + 1)
    ours.layout.allocate([blocks] * len(ours.layout.groups))
    for prompt in prompts:
        with torch.no_grad():
            expected = theirs(torch.tensor([prompt])).logits[0].numpy()
        got = run(ours, Part(tables(1, blocks)[0], prompt, 0, every_position=True))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert generate(ours, prompts[:3], 12).tokens == [greedy(theirs, prompt, 12) for prompt in prompts[:3]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_checkpoint_in_shards_is_widened(dtype: torch.dtype, backend: str, tmp_path: Path) -> None:
    theirs = random_llama(4).to(dtype)
    theirs.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = build(tmp_path, backend)
    ours.layout.allocate([2])
    prompt = list(range(20))
    # Read back, not cast: casting the module would leave its rotary frequencies rounded.
    widened = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        expected = widened(torch.tensor([prompt])).logits[0].numpy()
    got = run(ours, Part([0, 1], prompt, 0, every_position=True))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_greedy_output_of_the_bundled_model_is_that_of_transformers() -> None:
    """The short form of `python -m tests.model.exactness` (20 prompts of 64 tokens)."""
    figures = compare(num_prompts=3, num_tokens=8)
    assert (figures.equal_prompts, figures.equal_tokens) == (3, 24)
    assert figures.largest_difference < 1e-3


def test_a_context_beyond_the_models_own_is_refused(tmp_path: Path) -> None:
    random_llama(1).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="at most 512"):
        build(tmp_path, max_model_len=513)
