"""A checkpoint's weights as the reference backend wants them: dequantised to float32, projections joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo_engine.model.checkpoint import Checkpoint
from octavo_engine.model.spec import LayerSpec, ModelSpec, UnsupportedModelError

Progress = Callable[[str, float], None]


class LayerWeights(NamedTuple):
    """float32 tensors of one layer; q, k and v are one product, gate and up another."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class ModelWeights(NamedTuple):
    """float32 tensors of the model; `head` is `embedding` itself where they are tied."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor


def load_weights(checkpoint: Checkpoint, progress: Progress) -> ModelWeights:
    spec = checkpoint.spec
    _refuse_unserved(spec)

    def load(*names: str, rows: int | None = None) -> Tensor:
        parts = [checkpoint.tensor(name).dequantize() for name in names]
        joined = np.concatenate(parts) if len(parts) > 1 else parts[0]
        if rows is not None and joined.shape[0] != rows:
            raise UnsupportedModelError(
                f"The weights of {names[0]} have {joined.shape[0]} rows where the configuration says {rows}; "
                "the model is damaged, fetch it again."
            )
        # A copy where the file is mapped read-only: torch tensors are writable by contract.
        return torch.from_numpy(joined if joined.flags.writeable else joined.copy())

    embedding = load("embedding.weight", rows=spec.vocab_size)
    layers = []
    for index, layer in enumerate(spec.layers):
        progress("loading weights", index / len(spec.layers))
        layers.append(_load_layer(load, f"layers.{index}", layer))
    head = embedding if spec.tied_embeddings else load("head.weight", rows=spec.vocab_size)
    progress("loading weights", 1.0)
    return ModelWeights(embedding, tuple(layers), load("final_norm.weight", rows=spec.hidden_size), head)


def _load_layer(load: Callable[..., Tensor], at: str, layer: LayerSpec) -> LayerWeights:
    attention, mlp = layer.attention, layer.mlp
    qkv = [f"{at}.{part}" for part in ("q", "k", "v")]
    gate_up = [f"{at}.{part}" for part in ("gate", "up")]

    def bias(present: bool, names: Sequence[str]) -> Tensor | None:
        return load(*(f"{name}.bias" for name in names)) if present else None

    return LayerWeights(
        attention_norm=load(f"{at}.attention_norm.weight"),
        qkv=load(*(f"{name}.weight" for name in qkv), rows=attention.q_size + 2 * attention.kv_size),
        qkv_bias=bias(attention.qkv_bias, qkv),
        output=load(f"{at}.o.weight"),
        output_bias=bias(attention.output_bias, [f"{at}.o"]),
        mlp_norm=load(f"{at}.mlp_norm.weight"),
        gate_up=load(*(f"{name}.weight" for name in gate_up), rows=2 * mlp.intermediate_size),
        gate_up_bias=bias(mlp.bias, gate_up),
        down=load(f"{at}.down.weight"),
        down_bias=bias(mlp.bias, [f"{at}.down"]),
    )


def _refuse_unserved(spec: ModelSpec) -> None:
    """A spec can say more than this backend computes: refuse it rather than compute something else."""
    plain = spec.embedding_scale == 1.0 and spec.logit_softcap == 0.0 and spec.final_norm.offset == 0.0
    for layer in spec.layers:
        norms = (layer.attention_norm, layer.mlp_norm)
        plain = plain and layer.attention.qk_norm is None and all(norm.offset == 0.0 for norm in norms)
        plain = plain and layer.post_attention_norm is None and layer.post_mlp_norm is None
        plain = plain and layer.mlp.moe is None and layer.mlp.activation == "silu"
    if not plain:
        raise UnsupportedModelError(
            f"Architecture '{spec.architecture}' needs an operation that the reference backend does not have yet."
        )
