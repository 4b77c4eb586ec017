"""Rotary scaling as configurations state it: how long a context it makes, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.model.config_spec import spec_from_config
from octavo_engine.model.gguf_spec import spec_from_gguf
from octavo_engine.model.rope import rope_table
from octavo_engine.model.rope_scaling import rope_from_config, yarn
from octavo_engine.model.spec import RopeSpec, RopeStretch, UnsupportedModelError

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 32768,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        (None, 32768),
        ({"rope_type": "default"}, 32768),
        ({"type": "linear", "factor": 2.5}, 81920),
        ({"type": "dynamic", "factor": 2.0}, 65536),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}, 32768),
        ({"rope_type": "yarn", "factor": 4.0}, 131072),
        ({"rope_type": "yarn", "original_max_position_embeddings": 4096}, 32768),
        (LLAMA3, 32768),
    ],
)
def test_the_longest_context_is_the_scaled_one(scaling: dict[str, Any] | None, longest: int) -> None:
    assert spec_from_config({**CONFIG, "rope_scaling": scaling}, True).max_position == longest


def test_gemma_states_its_scaled_context_itself() -> None:
    ropes = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}
    config = {**CONFIG, "architectures": ["Gemma3ForCausalLM"], "rope_parameters": ropes}
    assert spec_from_config(config, True).max_position == 32768


@pytest.mark.parametrize(
    ("scaling", "sentence"),
    [
        ({"rope_type": "longrope"}, r"'longrope' is not served yet; use a model with one of default, .*yarn"),
        ({"rope_type": "linear"}, r"'linear' lacks a number .*'factor'"),
        ({**LLAMA3, "original_max_position_embeddings": None}, "'llama3' lacks a number"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "a part of each head"),
    ],
)
def test_what_is_not_served_is_refused_in_a_sentence(scaling: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnsupportedModelError, match=sentence):
        spec_from_config({**CONFIG, "rope_scaling": scaling}, True)


def test_yarn_of_a_gguf_is_that_of_a_configuration() -> None:
    stated = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
    keys = {
        "general.architecture": "qwen3",
        "qwen3.embedding_length": 64,
        "qwen3.block_count": 1,
        "qwen3.context_length": 32768,
        "qwen3.feed_forward_length": 96,
        "qwen3.attention.head_count": 4,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3.rope.freq_base": 1e6,
        "qwen3.rope.scaling.type": "yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 32768,
    }
    spec = spec_from_gguf(keys, {}, 100, ())
    assert spec.layers[0].attention.rope == rope_from_config(stated, 16, 32768)
    assert spec.max_position == 131072


@given(factor=st.floats(1.0, 64.0), trained=st.sampled_from([64, 4096, 32768]), dim=st.sampled_from([8, 64, 128]))
def test_yarn_slows_by_at_most_its_factor_and_never_less_for_a_slower_turn(
    factor: float, trained: int, dim: int
) -> None:
    divisors = np.array(yarn(10000.0, dim, factor, trained, magnitude=1.0).inverse_frequency_divisors)
    rounding = 1e-12 * factor
    assert 1.0 - rounding <= divisors.min() <= divisors.max() <= factor + rounding
    assert np.diff(divisors).min() >= -rounding


@given(length=st.integers(1, 64))
def test_dynamic_scaling_changes_nothing_within_the_first_training(length: int) -> None:
    plain, dynamic = RopeSpec(16, 10000.0), RopeSpec(16, 10000.0, stretch=RopeStretch(8.0, 64))
    for ours, theirs in zip(rope_table(dynamic, length), rope_table(plain, length), strict=True):
        assert np.array_equal(ours, theirs)
