"""The models that are measured: their shapes as data, with random weights made on the device."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from octavo_engine.model.spec import AttentionSpec, LayerSpec, MLPSpec, ModelSpec, MoESpec, NormSpec, RopeSpec
from octavo_engine.worker.gpu.weights import Experts, LayerWeights, ModelWeights
from octavo_kernels.triton.weights import Weight, quantize

SPREAD: Final = 0.02
"""Standard deviation of the weights, as models are initialised."""


class Shape(NamedTuple):
    """A model's sizes. intermediate: of one expert where there are experts."""

    name: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    theta: float
    eps: float
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    max_position: int = 131072

    def tiny(self) -> Shape:
        """Return a model of the same kind that the interpreter can run."""
        return self._replace(
            vocab=256, hidden=64, layers=1, heads=4, kv_heads=2, head_dim=16, intermediate=64, max_position=512,
            experts=min(self.experts, 4), experts_per_token=min(self.experts_per_token, 2),
        )  # fmt: skip

    @property
    def spec(self) -> ModelSpec:
        """Return it as the engine knows models."""
        norm = NormSpec(self.eps)
        attention = AttentionSpec(
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            rope=RopeSpec(self.head_dim, self.theta),
            scale=self.head_dim**-0.5,
            qk_norm=norm if self.qk_norm else None,
        )
        moe = MoESpec(self.experts, self.experts_per_token) if self.experts else None
        layer = LayerSpec(attention, MLPSpec(self.intermediate, moe=moe), norm, norm)
        return ModelSpec(
            self.name, self.vocab, self.hidden, self.max_position, (layer,) * self.layers, norm, tied_embeddings=False
        )

    @property
    def active_bytes(self) -> int:
        """Return the bytes of bfloat16 weights that one token's step reads: the experts it has, the head, no embedding.
        """  # fmt: skip
        attention = 2 * self.heads * self.head_dim + 2 * self.kv_heads * self.head_dim
        inner = 3 * self.intermediate * (self.experts_per_token or 1)
        return 2 * self.hidden * (self.layers * (attention + inner + 2 * self.experts) + self.vocab)

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of one token in a cache of bfloat16."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 2


LLAMA_8B: Final = Shape("llama-3.1-8b", 128256, 4096, 32, 32, 8, 128, 14336, 500000.0, 1e-5)
QWEN_8B: Final = Shape("qwen3-8b", 151936, 4096, 36, 32, 8, 128, 12288, 1e6, 1e-6, qk_norm=True, max_position=40960)
QWEN_30B: Final = Shape(
    "qwen3-30b-a3b", 151936, 2048, 48, 32, 4, 128, 768, 1e6, 1e-6, qk_norm=True, experts=128, experts_per_token=8,
    max_position=40960,
)  # fmt: skip


def random_weights(
    spec: ModelSpec, device: torch.device, dtype: torch.dtype, kind: str = "dense", seed: int = 0
) -> ModelWeights:
    """Return weights of `spec`, the same for the same seed and device; matrices but the head are of `kind`."""
    generator = torch.Generator(device).manual_seed(seed)

    def values(*size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device).normal_(0.0, SPREAD, generator=generator)

    def matrix(*size: int) -> Weight:
        return quantize(values(*size), kind)

    def norm(width: int) -> Tensor:
        return torch.empty(width, dtype=torch.float32, device=device).normal_(1.0, SPREAD, generator=generator)

    def layer(of: LayerSpec) -> LayerWeights:
        attention, inner, hidden = of.attention, of.mlp.intermediate_size, spec.hidden_size
        experts = None
        if (moe := of.mlp.moe) is not None:
            router = Weight("dense", values(moe.num_experts, hidden).float())
            stacked = matrix(moe.num_experts, 2 * inner, hidden), matrix(moe.num_experts, hidden, inner)
            experts = Experts(router, *stacked)
        return LayerWeights(
            attention_norm=norm(hidden),
            qkv=matrix(attention.q_size + 2 * attention.kv_size, hidden),
            qkv_bias=None,
            q_norm=norm(attention.head_dim) if attention.qk_norm else None,
            k_norm=norm(attention.head_dim) if attention.qk_norm else None,
            output=matrix(hidden, attention.q_size),
            output_bias=None,
            post_attention_norm=None,
            mlp_norm=norm(hidden),
            gate_up=matrix(2 * inner, hidden) if experts is None else None,
            gate_up_bias=None,
            down=matrix(hidden, inner) if experts is None else None,
            down_bias=None,
            experts=experts,
            post_mlp_norm=None,
        )

    embedding = values(spec.vocab_size, spec.hidden_size)
    layers = tuple(layer(each) for each in spec.layers)
    head = Weight("dense", values(spec.vocab_size, spec.hidden_size))
    return ModelWeights(embedding, layers, norm(spec.hidden_size), head)
