"""From a GGUF file's metadata to a `ModelSpec`: llama (Mistral and Mixtral too), qwen2, qwen3, qwen3moe, gemma3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from octavo_engine.model.rope_scaling import BETA_FAST, BETA_SLOW, yarn, yarn_magnitude
from octavo_engine.model.spec import (
    Activation,
    AttentionSpec,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    MoESpec,
    NormSpec,
    RopeSpec,
    check_stated,
)
from octavo_engine.model.spec import UnsupportedModelError as Unsupported

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3")
_GEMMA_PATTERN: Final = 6
"""Every sixth layer attends to everything; the files do not say so."""
_GEMMA_LOCAL_THETA: Final = 10000.0
_GEMMA_27B_LAYERS: Final = 62
"""That model alone scales queries by its hidden size over its heads; the files do not say so either."""


class Metadata:
    """The keys of one architecture. `tensors` holds the names of those the file has."""

    def __init__(self, keys: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        self.architecture = str(keys.get("general.architecture"))
        self.tensors = tensors
        self._keys = keys

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the architecture's own, or the default."""
        return self._keys.get(f"{self.architecture}.{key}", default)

    def required(self, key: str) -> Any:
        """Return a value; raises UnsupportedModelError where there is none."""
        value = self.get(key)
        if value is None:
            raise Unsupported(f"The GGUF file lacks '{self.architecture}.{key}'; convert the model again.")
        return value


def served_architecture(keys: Mapping[str, Any]) -> str:
    """Return the file's architecture. Raises UnsupportedModelError naming it, and those served."""
    name = keys.get("general.architecture")
    if name is None:
        raise Unsupported(f"The GGUF file names no architecture; give a model of {', '.join(ARCHITECTURES)}.")
    if name not in ARCHITECTURES:
        raise Unsupported(
            f"GGUF architecture '{name}' is not served yet; the served ones are {', '.join(ARCHITECTURES)}."
        )
    return str(name)


def spec_from_gguf(
    keys: Mapping[str, Any], tensors: Mapping[str, Any], vocab_size: int, rope_divisors: tuple[float, ...]
) -> ModelSpec:
    """Return the spec. rope_divisors: what `rope_freqs.weight` holds, if there is one.

    Raises UnsupportedModelError with a sentence for what is not served.
    """
    metadata, name = Metadata(keys, tensors), served_architecture(keys)
    hidden_size, count = int(metadata.required("embedding_length")), int(metadata.required("block_count"))
    head_dim = _head_dim(metadata, hidden_size)
    rotated, experts = _rotated(metadata, head_dim), int(metadata.get("expert_count", 0))
    check_stated(
        {"layers": count, "head dimensions": head_dim, "rotated dimensions": rotated, "experts": experts},
    )
    window = int(metadata.get("attention.sliding_window") or 0)
    layers = [
        _layer(metadata, hidden_size, rope_divisors, window if _slides(name, index) else 0) for index in range(count)
    ]
    return ModelSpec(
        architecture=name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        max_position=_longest(metadata),
        layers=tuple(layers),
        final_norm=layers[0].attention_norm,
        tied_embeddings="output.weight" not in tensors,
        embedding_scale=hidden_size**0.5 if name == "gemma3" else 1.0,
        logit_softcap=float(metadata.get("final_logit_softcapping", 0.0)),
    )


def _slides(architecture: str, index: int) -> bool:
    return architecture != "gemma3" or (index + 1) % _GEMMA_PATTERN != 0


def _layer(metadata: Metadata, hidden_size: int, rope_divisors: tuple[float, ...], window: int) -> LayerSpec:
    num_heads, tensors = int(metadata.required("attention.head_count")), metadata.tensors
    head_dim = _head_dim(metadata, hidden_size)
    gemma = metadata.architecture == "gemma3"
    large = gemma and metadata.get("block_count") == _GEMMA_27B_LAYERS
    # A converter of Gemma 3 adds the norms' offset to what it stores.
    norm = NormSpec(eps=float(metadata.required("attention.layer_norm_rms_epsilon")))
    attention = AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=int(metadata.get("attention.head_count_kv", num_heads)),
        head_dim=head_dim,
        rope=_rope(metadata, head_dim, rope_divisors, local=gemma and window > 0),
        scale=(hidden_size / num_heads if large else head_dim) ** -0.5,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        qk_norm=norm if "blk.0.attn_q_norm.weight" in tensors else None,
        window=window,
    )
    return LayerSpec(
        attention=attention,
        mlp=_mlp(metadata),
        attention_norm=norm,
        mlp_norm=norm,
        post_attention_norm=norm if gemma else None,
        post_mlp_norm=norm if gemma else None,
    )


def _head_dim(metadata: Metadata, hidden_size: int) -> int:
    return int(metadata.get("attention.key_length") or hidden_size // int(metadata.required("attention.head_count")))


def _mlp(metadata: Metadata) -> MLPSpec:
    size = int(metadata.required("feed_forward_length"))
    if experts := int(metadata.get("expert_count", 0)):
        if "blk.0.ffn_gate_exps.weight" not in metadata.tensors:
            raise Unsupported("This GGUF keeps each expert in a tensor of its own, as old ones did; convert it again.")
        moe = MoESpec(experts, int(metadata.required("expert_used_count")))
        return MLPSpec(int(metadata.get("expert_feed_forward_length", size)), moe=moe)
    activation: Activation = "gelu_tanh" if metadata.architecture == "gemma3" else "silu"
    return MLPSpec(size, activation, bias="blk.0.ffn_down.bias" in metadata.tensors)


def _rotated(metadata: Metadata, head_dim: int) -> int:
    return int(metadata.get("rope.dimension_count", head_dim))


def _rope(metadata: Metadata, head_dim: int, divisors: tuple[float, ...], local: bool) -> RopeSpec:
    dim = _rotated(metadata, head_dim)
    if local:
        return RopeSpec(dim, float(metadata.get("rope.freq_base_swa", _GEMMA_LOCAL_THETA)))
    theta = float(metadata.get("rope.freq_base", 10000.0))
    if divisors:
        return RopeSpec(dim, theta, divisors)
    kind = metadata.get("rope.scaling.type", "none")
    if kind == "none":
        return RopeSpec(dim, theta)
    factor = float(metadata.required("rope.scaling.factor"))
    if kind == "linear":
        return RopeSpec(dim, theta, (factor,) * (dim // 2))
    if kind == "yarn":
        return _yarn(metadata, theta, dim, factor)
    raise Unsupported(
        f"Rotary scaling '{kind}' is not served yet; use a model with 'none', 'linear' or 'yarn' scaling."
    )


def _yarn(metadata: Metadata, theta: float, dim: int, factor: float) -> RopeSpec:
    trained = metadata.get("rope.scaling.original_context_length") or metadata.required("context_length")
    stated = float(metadata.get("rope.scaling.attn_factor", 1.0))
    return yarn(
        theta,
        dim,
        factor,
        float(trained),
        magnitude=stated * yarn_magnitude(factor),
        beta_fast=float(metadata.get("rope.scaling.yarn_beta_fast", BETA_FAST)),
        beta_slow=float(metadata.get("rope.scaling.yarn_beta_slow", BETA_SLOW)),
    )


def _longest(metadata: Metadata) -> int:
    """Return the longest context in tokens: YaRN's factor counts from the first training, which a file states apart."""
    stated = int(metadata.required("context_length"))
    if metadata.get("rope.scaling.type") != "yarn":
        return stated
    trained = int(metadata.get("rope.scaling.original_context_length") or stated)
    return max(stated, int(trained * float(metadata.required("rope.scaling.factor"))))
