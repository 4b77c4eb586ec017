"""A checkpoint's weights on a device: matrices as the kernels read them, vectors as float32, one rank's share of both.

q, k and v are one product, gate and up another, a layer's experts one stack. What is loaded has its shapes from the
rank's own spec: a checkpoint that says otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo_engine.model.qtensor import QTensor
from octavo_engine.model.spec import LayerSpec, NormSpec, UnsupportedModelError
from octavo_engine.worker.gpu.precision import GpuPrecision
from octavo_engine.worker.gpu.sharding import Shard, columns_of, rows_of, shard_spec
from octavo_kernels.triton.weights import Weight, from_gguf, join_rows, quantize, stack

if TYPE_CHECKING:  # reading files takes more than numpy and torch, and what computes takes no more
    from octavo_engine.model.checkpoint import Checkpoint

Progress = Callable[[str, float], None]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Experts(NamedTuple):
    """A mixture's weights. router: dense float32 [experts, d]; gate_up, down: stacks of all experts."""

    router: Weight
    gate_up: Weight
    down: Weight


class LayerWeights(NamedTuple):
    """Weights of one layer, None where it has none. Norms have their offsets added; vectors are float32.

    A layer has `gate_up` and `down`, or `experts`.
    """

    attention_norm: Tensor
    qkv: Weight
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Weight
    output_bias: Tensor | None
    post_attention_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Weight | None
    gate_up_bias: Tensor | None
    down: Weight | None
    down_bias: Tensor | None
    experts: Experts | None
    post_mlp_norm: Tensor | None


class ModelWeights(NamedTuple):
    """Weights of a model. `head` is the embedding itself where they are tied; both are dense, [vocabulary rows, d]."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Weight

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        total = self.embedding.nbytes + self.final_norm.nbytes
        total += self.head.nbytes if self.head.values is not self.embedding else 0
        for layer in self.layers:
            parts = [*layer[:-2], *(layer.experts or ()), layer.post_mlp_norm]
            total += sum(part.nbytes for part in parts if part is not None)
        return total


def load_weights(
    checkpoint: Checkpoint, precision: GpuPrecision, shard: Shard, device: torch.device, progress: Progress
) -> ModelWeights:
    """Return one rank's weights on `device`. Raises UnsupportedModelError if a tensor has not the shape it should."""
    spec = checkpoint.spec
    loader = _Loader(checkpoint, precision, shard, device)
    embedding = loader.dense("embedding.weight")
    own, layers = shard_spec(spec, shard), []
    for index, layer in enumerate(own.layers):
        progress("loading weights", index / len(own.layers))
        layers.append(_load_layer(loader, f"layers.{index}", layer))
    head = Weight("dense", embedding) if spec.tied_embeddings else Weight("dense", loader.dense("head.weight"))
    progress("loading weights", 1.0)
    return ModelWeights(embedding, tuple(layers), loader.norm("final_norm.weight", spec.final_norm), head)


def _load_layer(loader: _Loader, at: str, layer: LayerSpec) -> LayerWeights:
    attention, mlp, hidden = layer.attention, layer.mlp, loader.hidden
    moe = mlp.moe
    if moe is not None and (mlp.bias or layer.post_mlp_norm is not None):
        raise UnsupportedModelError("Experts with biases or a norm behind them are not served yet.")
    qkv, gate_up = [f"{at}.{part}" for part in "qkv"], [f"{at}.gate", f"{at}.up"]
    inner = mlp.intermediate_size
    return LayerWeights(
        attention_norm=loader.norm(f"{at}.attention_norm.weight", layer.attention_norm),
        qkv=loader.matrix(qkv, (attention.q_size + 2 * attention.kv_size, hidden)),
        qkv_bias=loader.bias(qkv, attention.qkv_bias),
        q_norm=loader.optional_norm(f"{at}.q_norm.weight", attention.qk_norm),
        k_norm=loader.optional_norm(f"{at}.k_norm.weight", attention.qk_norm),
        output=loader.matrix([f"{at}.o"], (hidden, attention.q_size)),
        output_bias=loader.bias([f"{at}.o"], attention.output_bias),
        post_attention_norm=loader.optional_norm(f"{at}.post_attention_norm.weight", layer.post_attention_norm),
        mlp_norm=loader.norm(f"{at}.mlp_norm.weight", layer.mlp_norm),
        gate_up=loader.matrix(gate_up, (2 * inner, hidden)) if moe is None else None,
        gate_up_bias=loader.bias(gate_up, mlp.bias),
        down=loader.matrix([f"{at}.down"], (hidden, inner)) if moe is None else None,
        down_bias=loader.bias([f"{at}.down"], mlp.bias),
        experts=None if moe is None else _load_experts(loader, at, moe.num_experts, inner),
        post_mlp_norm=loader.optional_norm(f"{at}.post_mlp_norm.weight", layer.post_mlp_norm),
    )


def _load_experts(loader: _Loader, at: str, count: int, inner: int) -> Experts:
    names = [f"{at}.experts.{expert}" for expert in range(count)]
    gate_up = [loader.matrix([f"{name}.gate", f"{name}.up"], (2 * inner, loader.hidden)) for name in names]
    down = [loader.matrix([f"{name}.down"], (loader.hidden, inner)) for name in names]
    # Which experts a token has may hang on the last bit, and a router is small.
    router = Weight("dense", loader.dense(f"{at}.router.weight", torch.float32))
    return Experts(router, stack(gate_up), stack(down))


class _Loader:
    """Takes a rank's slices of a checkpoint's tensors to the device."""

    def __init__(self, checkpoint: Checkpoint, precision: GpuPrecision, shard: Shard, device: torch.device) -> None:
        self.hidden = checkpoint.spec.hidden_size
        self._checkpoint = checkpoint
        self._precision = precision
        self._shard = shard
        self._device = device
        self._dtype = DTYPES[precision.dtype]

    def matrix(self, names: Sequence[str], shape: tuple[int, int]) -> Weight:
        """Return projections of one input as one weight, below each other."""
        tensors = [self._checkpoint.tensor(f"{name}.weight") for name in names]
        columns = tensors[0].shape[1]
        kinds = {self._precision.kind(tensor.kind, columns) for tensor in tensors}
        # Parts stored differently (Q4_K_M keeps some v in Q6_K) become dense together: one product has one layout.
        kind = kinds.pop() if len(kinds) == 1 and (kinds != {""} or len({t.kind for t in tensors}) == 1) else "dense"
        if columns % 32 and kind == "":
            kind = "dense"
        joined = join_rows([self._part(f"{name}.weight", t, kind) for name, t in zip(names, tensors, strict=True)])
        if (joined.rows, joined.columns) != shape:
            raise UnsupportedModelError(
                f"The weights {' and '.join(names)} are {joined.rows} x {joined.columns} where the configuration says "
                f"{shape[0]} x {shape[1]}; the model is damaged, fetch it again."
            )
        return joined

    def dense(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return one tensor's slice in the activations' type, or another."""
        return self._values(name, self._checkpoint.tensor(name)).to(dtype or self._dtype)

    def norm(self, name: str, spec: NormSpec) -> Tensor:
        """Return a norm's factors: what is stored, plus the architecture's offset."""
        return self._values(name, self._checkpoint.tensor(name)).reshape(-1) + spec.offset

    def optional_norm(self, name: str, spec: NormSpec | None) -> Tensor | None:
        """Return a norm's factors, None where there is no norm."""
        return None if spec is None else self.norm(name, spec)

    def bias(self, names: Sequence[str], present: bool) -> Tensor | None:
        """Return the biases of joined projections; None where there is none, or another rank adds it."""
        if not present:
            return None
        named = [f"{name}.bias" for name in names]
        joined = torch.cat([self._values(name, self._checkpoint.tensor(name)).reshape(-1) for name in named])
        return joined if len(joined) else None

    def _part(self, name: str, tensor: QTensor, kind: str) -> Weight:
        spec, shard = self._checkpoint.spec, self._shard
        if kind == "":
            rows, columns = rows_of(name, spec, shard), columns_of(name, spec, shard)
            weight = from_gguf(tensor.kind, tensor.planes[0])
            weight = weight if rows is None else weight.shard_rows(rows.start, rows.stop)
            weight = weight if columns is None else weight.shard_columns(columns.start, columns.stop)
            return weight.to(self._device)
        values = self._values(name, tensor)
        return Weight("dense", values.to(self._dtype)) if kind == "dense" else quantize(values, kind)

    def _values(self, name: str, tensor: QTensor) -> Tensor:
        """Return a tensor's slice as float32 on the device."""
        spec, shard = self._checkpoint.spec, self._shard
        values = tensor.dequantize()
        if (rows := rows_of(name, spec, shard)) is not None:
            values = values[rows]
        if (columns := columns_of(name, spec, shard)) is not None:
            values = values[:, columns]
        # A copy where the file is mapped read-only: torch tensors are writable by contract.
        owned = np.array(values, dtype=np.float32, order="C")
        return torch.from_numpy(owned).to(self._device)
