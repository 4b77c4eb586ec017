"""`ModelSpec`: an architecture as frozen data. Backends read it; they never ask what a model is called.

Per layer it says which norms, projections, rotary factors, window and feed-forward a layer has. Adding an architecture
means building another spec (and a name map, `names.py`), and touches a backend only for an operation it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

_LARGEST: Final = 2**31 - 1
"""Kernels count in 32 bits."""

_MOST: Final = {"layers": 10_000, "experts": 10_000, "head dimensions": 65_536, "rotated dimensions": 65_536}
"""Far beyond any model: what a spec has an entry for each of, a damaged configuration cannot have made."""

Activation = Literal["silu", "gelu_tanh"]


class UnsupportedModelError(ValueError):
    """The checkpoint asks for something no backend here computes; the message is one sentence with the remedy."""


def check_stated(stated: Mapping[str, int]) -> None:
    """Refuse counts beyond any model's, before a spec is made of them: it has entries for layers, experts and angles.

    Raises UnsupportedModelError with a sentence.
    """
    for what, count in stated.items():
        if not 0 <= count <= _MOST[what]:
            raise UnsupportedModelError(
                f"The model states {count} {what}, and {_MOST[what]} are the most there can be; its configuration is "
                "damaged, fetch it again."
            )


@dataclass(frozen=True, slots=True)
class RopeStretch:
    """Dynamic scaling: where contexts may be longer than the `trained` tokens, theta grows with them and `factor`."""

    factor: float
    trained: int


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position factors of a layer: rotate halves `i` and `i + dim / 2` of the first `dim` head dimensions.

    `inverse_frequency_divisors` (length dim / 2, or empty for all ones) carries every static scaling scheme: linear
    scaling is one constant, Llama 3's and YaRN's are ramps, a GGUF stores it as `rope_freqs.weight`.
    `magnitude` multiplies cosine and sine (YaRN's attention factor). `stretch` is what dynamic scaling does to theta.
    """

    dim: int
    theta: float
    inverse_frequency_divisors: tuple[float, ...] = ()
    magnitude: float = 1.0
    stretch: RopeStretch | None = None


@dataclass(frozen=True, slots=True)
class NormSpec:
    """RMS norm: x / sqrt(mean(x²) + eps) · (weight + offset)."""

    eps: float
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Attention of one layer. Sizes in elements; `window` in tokens, 0 for full attention; `scale` multiplies q·k."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec
    scale: float
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: NormSpec | None = None
    window: int = 0
    logit_softcap: float = 0.0

    @property
    def q_size(self) -> int:
        """Output features of the query projection."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Output features of the key projection, and of the value projection."""
        return self.num_kv_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class MoESpec:
    """Mixture of experts: `experts_per_token` of `num_experts` feed-forwards, chosen by a router."""

    num_experts: int
    experts_per_token: int
    normalize_weights: bool = True


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """Gated feed-forward: down(activation(gate(x)) · up(x))."""

    intermediate_size: int
    activation: Activation = "silu"
    bias: bool = False
    moe: MoESpec | None = None


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer. The post norms sit between a block's output and the residual addition (Gemma 3)."""

    attention: AttentionSpec
    mlp: MLPSpec
    attention_norm: NormSpec
    mlp_norm: NormSpec
    post_attention_norm: NormSpec | None = None
    post_mlp_norm: NormSpec | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only language model. `max_position` is the longest context it was made for, in tokens, scaled if so."""

    architecture: str
    vocab_size: int
    hidden_size: int
    max_position: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec
    tied_embeddings: bool
    embedding_scale: float = 1.0
    logit_softcap: float = 0.0

    def __post_init__(self) -> None:
        """Refuse sizes that contradict one another, so that a backend may trust them."""
        if not self.layers:
            raise UnsupportedModelError("The model has no layers; its configuration is damaged, fetch it again.")
        sizes = {"vocabulary": self.vocab_size, "hidden size": self.hidden_size, "context": self.max_position}
        for index, layer in enumerate(self.layers):
            _check_attention(index, layer.attention)
            heads, width = layer.attention.num_heads, layer.attention.head_dim
            sizes |= {f"heads of layer {index}": heads, f"head dimension of layer {index}": width}
            sizes |= {f"feed-forward size of layer {index}": layer.mlp.intermediate_size}
        if wrong := [f"{name} {size}" for name, size in sizes.items() if not 1 <= size <= _LARGEST]:
            raise UnsupportedModelError(
                f"The model's sizes must be 1 to {_LARGEST} ({', '.join(wrong[:3])}); its configuration is damaged, "
                "fetch it again."
            )


def _check_attention(index: int, attention: AttentionSpec) -> None:
    if not 0 <= attention.window <= _LARGEST:
        raise UnsupportedModelError(
            f"Layer {index} attends to a window of {attention.window} tokens; the model's configuration is damaged, "
            "fetch it again."
        )
    if attention.num_kv_heads < 1 or attention.num_heads % attention.num_kv_heads:
        raise UnsupportedModelError(
            f"Layer {index} has {attention.num_heads} query heads for {attention.num_kv_heads} key/value heads, "
            "which do not divide; the model's configuration is damaged, fetch it again."
        )
    rope = attention.rope
    if rope.dim % 2 or not 0 < rope.dim <= attention.head_dim:
        raise UnsupportedModelError(
            f"Layer {index} rotates {rope.dim} of {attention.head_dim} head dimensions; "
            "an even number up to the head dimension is needed."
        )
    if rope.inverse_frequency_divisors and len(rope.inverse_frequency_divisors) != rope.dim // 2:
        raise UnsupportedModelError(
            f"Layer {index} has {len(rope.inverse_frequency_divisors)} rotary factors for {rope.dim // 2} frequencies; "
            "the checkpoint is damaged, fetch it again."
        )
