"""The reference backend: a `ModelSpec` in plain torch functions, exact in float32, one row like any other.

What it promises and how: `octavo_kernels.reference.tiles`. Every dtype but float32 is refused: float32 is what
`transformers` agrees with token for token, and what faster backends are checked against.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_engine.model.checkpoint import Checkpoint, open_checkpoint
from octavo_engine.model.rope import rope_table
from octavo_engine.model.source import resolve
from octavo_engine.model.spec import AttentionSpec, LayerSpec, ModelSpec, RopeSpec, UnsupportedModelError
from octavo_engine.worker.executable import KVGroup, ModelStep
from octavo_kernels.reference import (
    AttentionPlan,
    Workers,
    linear,
    paged_attention,
    plan_attention,
    rms_norm,
    rope_and_cache,
    silu_mul,
    start_workers,
)
from octavo_kernels.reference.selfcheck import check_attention, check_elementwise, check_linear

Progress = Callable[[str, float], None]
_FLOAT32_BYTES = 4


def build_reference(
    source: str | Path,
    dtype: str = "float32",
    *,
    quantization: str = "auto",
    block_size: int = 16,
    max_model_len: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ReferenceModel:
    """Load a model (`bundled://…`, a GGUF file, a Hugging Face folder) for this backend.

    dtype: `float32`, or `auto`, which is float32 here. quantization: `auto` or `none`; stored weights are dequantised.
    max_model_len: positions to prepare, default the model's own. threads: default what this process may use. Raises
    UnsupportedModelError or ModelNotFoundError with a sentence for the user.
    """
    if dtype not in ("auto", "float32"):
        raise UnsupportedModelError(
            f"--dtype {dtype} is not served by the reference backend, which computes in float32; "
            "use --dtype float32 or auto."
        )
    if quantization not in ("auto", "none"):
        raise UnsupportedModelError(
            f"--quantization {quantization} is not served by the reference backend, which dequantises what is stored; "
            "use --quantization auto or none."
        )
    checkpoint = open_checkpoint(resolve(str(source), progress))
    weights = _load(checkpoint, progress or _silent)
    workers = start_workers(threads or len(os.sched_getaffinity(0)))
    model = ReferenceModel(checkpoint.spec, weights, block_size, max_model_len, workers)
    _check_machine(model)
    return model


def _silent(stage: str, fraction: float) -> None:
    """Report progress to nobody."""


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


def _load(checkpoint: Checkpoint, progress: Progress) -> ModelWeights:
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


def _check_machine(model: ReferenceModel) -> None:
    weights, attention = model.weights, model.spec.layers[0].attention
    first = weights.layers[0]
    check_linear([first.qkv, first.output, first.gate_up, first.down, weights.head])
    check_elementwise(model.spec.hidden_size, model.spec.layers[0].mlp.intermediate_size)
    check_attention(attention.num_heads, attention.num_kv_heads, attention.head_dim, model.layout.block_size)


class ReferenceLayout:
    """The KV cache: per group one tensor [layers, 2, num_blocks, block_size, kv_heads, head_dim], keys then values."""

    def __init__(self, spec: ModelSpec, block_size: int) -> None:
        self.block_size = block_size
        windows = sorted({layer.attention.window for layer in spec.layers})
        members = [[layer.attention for layer in spec.layers if layer.attention.window == window] for window in windows]
        self._shapes = [_group_shape(layers) for layers in members]
        self.groups = tuple(
            KVGroup(window, 2 * _FLOAT32_BYTES * layers * block_size * kv_heads * head_dim)
            for window, (layers, kv_heads, head_dim) in zip(windows, self._shapes, strict=True)
        )
        # (group, index within the group) of each layer.
        counters = [iter(range(len(spec.layers))) for _ in windows]
        self.places = tuple(
            (group, next(counters[group])) for group in (windows.index(layer.attention.window) for layer in spec.layers)
        )
        self.caches: list[Tensor] = []

    def allocate(self, num_blocks: Sequence[int]) -> None:
        """Allocate and touch `num_blocks[g]` blocks for each group. Raises MemoryError if they cannot be had."""
        self.caches = []
        for blocks, (layers, kv_heads, head_dim) in zip(num_blocks, self._shapes, strict=True):
            try:
                cache = torch.empty(layers, 2, blocks, self.block_size, kv_heads, head_dim)
            except RuntimeError as error:
                raise MemoryError(f"{blocks} KV blocks do not fit into memory; lower --kv-cache-memory.") from error
            self.caches.append(cache.zero_())

    def cache(self, layer: int) -> Tensor:
        """Return one layer's cache, [2, num_blocks, block_size, kv_heads, head_dim]."""
        group, index = self.places[layer]
        return self.caches[group][index]

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) of a group, in order."""
        cache = self.caches[group]
        for source, target in pairs:
            cache[:, :, target] = cache[:, :, source]

    def export_block(self, group: int, block: int) -> bytes:
        """Return one block over all layers of its group."""
        return self.caches[group][:, :, block].contiguous().numpy().tobytes()

    def import_block(self, group: int, block: int, data: bytes) -> None:
        """Write what `export_block` returned. Raises ValueError if it is not one block of this layout."""
        target = self.caches[group][:, :, block]
        if len(data) != self.groups[group].bytes_per_block:
            raise ValueError(
                f"A block of KV group {group} has {self.groups[group].bytes_per_block} bytes, not {len(data)}."
            )
        target.copy_(torch.from_numpy(np.frombuffer(data, dtype=np.float32).copy()).view(target.shape))


def _group_shape(layers: Sequence[AttentionSpec]) -> tuple[int, int, int]:
    sizes = {(layer.num_kv_heads, layer.head_dim) for layer in layers}
    if len(sizes) != 1:
        raise UnsupportedModelError("Layers of one attention window differ in their KV sizes, which is not served yet.")
    return (len(layers), *sizes.pop())


class ReferencePlan(NamedTuple):
    """What all layers of one step share."""

    tokens: Tensor
    slots: tuple[Tensor, ...]
    attention: tuple[AttentionPlan, ...]
    factors: dict[RopeSpec, tuple[Tensor, Tensor]]
    logit_tokens: Tensor


class ReferenceModel:
    """An `Executable`: x is float32 [T, hidden_size]."""

    def __init__(
        self, spec: ModelSpec, weights: ModelWeights, block_size: int, max_model_len: int | None, workers: Workers
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.vocab_size = spec.vocab_size
        self.num_layers = len(spec.layers)
        self.max_position = spec.max_position
        self.layout = ReferenceLayout(spec, block_size)
        self._workers = workers
        positions = max(max_model_len or 0, spec.max_position)
        self._tables = {
            rope: tuple(torch.from_numpy(part) for part in rope_table(rope, positions))
            for rope in {layer.attention.rope for layer in spec.layers}
        }

    def plan(self, step: ModelStep) -> ReferencePlan:
        """Prepare what all layers share. Raises ValueError for adapters, which this backend does not have."""
        if (step.adapters >= 0).any():
            raise ValueError("The reference backend serves no LoRA adapters; send the request without one.")
        positions = torch.from_numpy(step.positions.astype(np.int64))
        return ReferencePlan(
            tokens=torch.from_numpy(step.tokens.astype(np.int64)),
            slots=tuple(torch.from_numpy(slots) for slots in step.slots),
            attention=tuple(
                self._plan_attention(step, group, tables) for group, tables in enumerate(step.block_tables)
            ),
            factors={rope: (cos[positions], sin[positions]) for rope, (cos, sin) in self._tables.items()},
            logit_tokens=torch.from_numpy(step.logit_tokens.astype(np.int64)),
        )

    def _plan_attention(self, step: ModelStep, group: int, tables: NDArray[np.int32]) -> AttentionPlan:
        layer = next(index for index, place in enumerate(self.layout.places) if place[0] == group)
        attention = self.spec.layers[layer].attention
        return plan_attention(
            step.row_offsets,
            step.positions,
            step.context_lengths,
            tables,
            self.layout.block_size,
            attention.group_size,
            attention.window,
        )

    def embed(self, plan: ReferencePlan) -> Tensor:
        """Return x of the step's tokens, before the first layer."""
        return self.weights.embedding[plan.tokens]

    def attend(self, plan: ReferencePlan, layer: int, x: Tensor) -> Tensor:
        """Return x after the layer's attention block."""
        spec, weights, workers = self.spec.layers[layer], self.weights.layers[layer], self._workers
        attention, (group, _) = spec.attention, self.layout.places[layer]
        normed, _ = rms_norm(x, weights.attention_norm, spec.attention_norm.eps, workers=workers)
        qkv = linear(normed, weights.qkv, weights.qkv_bias, workers).view(x.shape[0], -1, attention.head_dim)
        heads, kv_heads = attention.num_heads, attention.num_kv_heads
        q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        cos, sin = plan.factors[attention.rope]
        cache = self.layout.cache(layer)
        q = rope_and_cache(q, k, v, cos, sin, cache, plan.slots[group])
        y = paged_attention(q, cache, plan.attention[group], attention.scale, attention.logit_softcap, workers)
        return x + linear(y.flatten(1), weights.output, weights.output_bias, workers)

    def mlp(self, plan: ReferencePlan, layer: int, x: Tensor) -> Tensor:
        """Return x after the layer's feed-forward block."""
        spec, weights, workers = self.spec.layers[layer], self.weights.layers[layer], self._workers
        normed, _ = rms_norm(x, weights.mlp_norm, spec.mlp_norm.eps, workers=workers)
        gate_up = linear(normed, weights.gate_up, weights.gate_up_bias, workers)
        return x + linear(silu_mul(gate_up, workers), weights.down, weights.down_bias, workers)

    def logits(self, plan: ReferencePlan, x: Tensor) -> NDArray[np.float32]:
        """Return float32 [L, vocab_size] for the step's `logit_tokens`."""
        normed, _ = rms_norm(
            x[plan.logit_tokens], self.weights.final_norm, self.spec.final_norm.eps, workers=self._workers
        )
        result: NDArray[np.float32] = linear(normed, self.weights.head, None, self._workers).numpy()
        return result
