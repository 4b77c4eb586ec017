"""From a Hugging Face `config.json` to a `ModelSpec`: Llama, Mistral, Mixtral, Qwen2, Qwen3 (MoE too), Gemma 3 text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from octavo_engine.model.rope_scaling import rope_from_config, scaled_length
from octavo_engine.model.spec import (
    Activation,
    AttentionSpec,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    MoESpec,
    NormSpec,
    RopeSpec,
    UnsupportedModelError,
    check_stated,
)

ARCHITECTURES: Final = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
_OTHER_NAMES: Final = {
    "gemma3_text": "gemma3",
    # Saved without a head, as embedding models are.
    "LlamaModel": "llama",
    "MistralModel": "mistral",
    "Qwen2Model": "qwen2",
    "Qwen3Model": "qwen3",
    "Gemma3TextModel": "gemma3",
}
_ACTIVATIONS: Final[dict[str, Activation]] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
_NEEDED: Final = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size")
_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_GEMMA_PATTERN: Final = 6
"""Every sixth layer of a Gemma 3 attends to everything, where its configuration does not say otherwise."""


def spec_from_config(config: Mapping[str, Any], head_stored: bool) -> ModelSpec:
    """Return the spec of a configuration; `head_stored` says whether the output head has a tensor of its own.

    Raises UnsupportedModelError with a sentence for what is not served.
    """
    architecture = served_architecture(config)
    if config.get("quantization_config"):
        raise UnsupportedModelError(
            "Quantised safetensors are not served yet; use the unquantised checkpoint, or a GGUF of the model."
        )
    if missing := [name for name in _NEEDED if config.get(name) is None]:
        raise UnsupportedModelError(f"config.json lacks {', '.join(missing)}; download the model again.")
    gemma = architecture == "gemma3"
    norm = NormSpec(eps=float(config.get("rms_norm_eps", 1e-6)), offset=1.0 if gemma else 0.0)
    hidden_size, count = int(config["hidden_size"]), int(config["num_hidden_layers"])
    check_stated({"layers": count, "head dimensions": _head_dim(config), "experts": _num_experts(config)})
    kinds = _layer_kinds(config, architecture, count)
    layers = {kind: _layer(config, architecture, kind, norm) for kind in set(kinds)}
    return ModelSpec(
        architecture=architecture,
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden_size,
        max_position=_longest(config, architecture),
        layers=tuple(layers[kind] for kind in kinds),
        final_norm=norm,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)) or not head_stored,
        embedding_scale=hidden_size**0.5 if gemma else 1.0,
        logit_softcap=float(config.get("final_logit_softcapping") or 0.0),
    )


def served_architecture(config: Mapping[str, Any]) -> str:
    """Return our name of a configuration's architecture. Raises UnsupportedModelError naming it, and those served."""
    stated = config.get("architectures") or [config.get("model_type")]
    name = stated[0] if isinstance(stated, list) else stated
    if not isinstance(name, str):
        raise UnsupportedModelError(
            f"config.json names no architecture; give the folder of a model of {', '.join(ARCHITECTURES)}."
        )
    found = ARCHITECTURES.get(name) or _OTHER_NAMES.get(name, name)
    if found not in ARCHITECTURES.values():
        raise UnsupportedModelError(
            f"Architecture {name} is not served yet; the served ones are {', '.join(ARCHITECTURES)}."
        )
    return found


def _layer_kinds(config: Mapping[str, Any], architecture: str, count: int) -> list[str]:
    """Return each layer's kind: attention to everything, or within a window."""
    if not config.get("sliding_window") or not config.get("use_sliding_window", architecture != "qwen2"):
        return [_FULL] * count
    if stated := config.get("layer_types"):
        if len(stated) != count or set(stated) - {_FULL, _SLIDING}:
            raise UnsupportedModelError(
                f"config.json's layer_types are not {count} of {_FULL} and {_SLIDING}; other kinds are not served."
            )
        return list(stated)
    if architecture == "gemma3":
        every = int(config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or _GEMMA_PATTERN)
        return [_SLIDING if (index + 1) % every else _FULL for index in range(count)]
    if architecture in ("qwen2", "qwen3", "qwen3_moe"):
        first = int(config.get("max_window_layers", count))
        return [_SLIDING if index >= first else _FULL for index in range(count)]
    return [_SLIDING] * count


def _layer(config: Mapping[str, Any], architecture: str, kind: str, norm: NormSpec) -> LayerSpec:
    num_heads = int(config["num_attention_heads"])
    head_dim = _head_dim(config)
    gemma, bias = architecture == "gemma3", bool(config.get("attention_bias", False))
    scale = float(config.get("query_pre_attn_scalar") or head_dim) ** -0.5 if gemma else head_dim**-0.5
    attention = AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=head_dim,
        rope=_rope(config, kind, head_dim),
        scale=scale,
        qkv_bias=bias or architecture == "qwen2",
        output_bias=bias,
        qk_norm=norm if architecture in ("qwen3", "qwen3_moe", "gemma3") else None,
        window=int(config["sliding_window"]) if kind == _SLIDING else 0,
    )
    post = norm if gemma else None
    return LayerSpec(
        attention=attention,
        mlp=_mlp(config, architecture),
        attention_norm=norm,
        mlp_norm=norm,
        post_attention_norm=post,
        post_mlp_norm=post,
    )


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or int(config["hidden_size"]) // int(config["num_attention_heads"]))


def _num_experts(config: Mapping[str, Any]) -> int:
    # One library names them both ways.
    return int(config.get("num_local_experts") or config.get("num_experts") or 0)


def _mlp(config: Mapping[str, Any], architecture: str) -> MLPSpec:
    size, activation = int(config["intermediate_size"]), _activation(config)
    if architecture not in ("mixtral", "qwen3_moe"):
        return MLPSpec(size, activation, bool(config.get("mlp_bias", False)))
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise UnsupportedModelError(
            "A mixture of experts with some layers that have none is not served yet; use a model with experts in all."
        )
    normalize = architecture == "mixtral" or bool(config.get("norm_topk_prob", False))
    return MLPSpec(
        int(config.get("moe_intermediate_size") or size),
        activation,
        moe=MoESpec(_num_experts(config), int(config.get("num_experts_per_tok") or 2), normalize),
    )


def _activation(config: Mapping[str, Any]) -> Activation:
    name = config.get("hidden_activation") or config.get("hidden_act") or "silu"
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"Activation '{name}' is not served; the served ones are {', '.join(_ACTIVATIONS)}."
        )
    return _ACTIVATIONS[name]


def _rope(config: Mapping[str, Any], kind: str, head_dim: int) -> RopeSpec:
    return rope_from_config(_rope_parameters(config, kind), head_dim, _max_position(config))


def _rope_parameters(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Newer configurations gather everything in rope_parameters, per layer kind or once; older ones split it in two."""
    theta = config.get("rope_theta", 10000.0)
    stated = config.get("rope_parameters")
    if stated and isinstance(stated.get(kind), Mapping):
        stated = stated[kind]
    elif not stated and kind == _SLIDING and "rope_local_base_freq" in config:
        stated = {"rope_theta": config["rope_local_base_freq"]}
    return {"rope_theta": theta, **(stated or config.get("rope_scaling") or {})}


def _max_position(config: Mapping[str, Any]) -> int:
    return int(config.get("max_position_embeddings", 2048))


def _longest(config: Mapping[str, Any], architecture: str) -> int:
    """Return the longest context in tokens. Gemma 3's configurations state the scaled one; the others', the trained."""
    stated = _max_position(config)
    return stated if architecture == "gemma3" else scaled_length(_rope_parameters(config, _FULL), stated)
