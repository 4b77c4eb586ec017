"""The reference backend: a `ModelSpec` in plain torch functions, exact in float32, one row like any other.

What it promises and how: `octavo_kernels.reference.tiles`. Every dtype but float32 is refused: float32 is what
`transformers` agrees with token for token, and what faster backends are checked against.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_engine.model.checkpoint import open_checkpoint
from octavo_engine.model.rope import rope_table
from octavo_engine.model.source import resolve
from octavo_engine.model.spec import ModelSpec, RopeSpec, UnsupportedModelError
from octavo_engine.worker.backends.reference_cache import ReferenceLayout
from octavo_engine.worker.backends.reference_weights import ModelWeights, Progress, load_weights
from octavo_engine.worker.executable import ALL, ModelStep
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
    max_model_len: the longest context that will be asked for, at most the model's own. threads: default what this
    process may use. Raises UnsupportedModelError or ModelNotFoundError with a sentence for the user.
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
    if (max_model_len or 0) > checkpoint.spec.max_position:
        raise UnsupportedModelError(
            f"--max-model-len {max_model_len} is beyond the {checkpoint.spec.max_position} positions the model was "
            f"trained for; use at most {checkpoint.spec.max_position}."
        )
    weights = load_weights(checkpoint, progress or _silent)
    workers = start_workers(threads or len(os.sched_getaffinity(0)))
    model = ReferenceModel(checkpoint.spec, weights, block_size, workers, max_model_len or checkpoint.spec.max_position)
    _check_machine(model)
    return model


def _silent(stage: str, fraction: float) -> None:
    """Report progress to nobody."""


def _check_machine(model: ReferenceModel) -> None:
    weights, attention = model.weights, model.spec.layers[0].attention
    first = weights.layers[0]
    check_linear([first.qkv, first.output, first.gate_up, first.down, weights.head])
    check_elementwise(model.spec.hidden_size, model.spec.layers[0].mlp.intermediate_size)
    check_attention(attention.num_heads, attention.num_kv_heads, attention.head_dim, model.layout.block_size)


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
        self, spec: ModelSpec, weights: ModelWeights, block_size: int, workers: Workers, max_position: int
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.vocab_size = spec.vocab_size
        self.hidden_size = spec.hidden_size
        self.num_layers = len(spec.layers)
        self.max_position = max_position
        self.layout = ReferenceLayout(spec, block_size)
        self._workers = workers
        self._tables = {
            rope: tuple(torch.from_numpy(part) for part in rope_table(rope, self.max_position))
            for rope in {layer.attention.rope for layer in spec.layers}
        }

    def kernel_seconds(self) -> float:
        """Return 0.0: the reference does not count."""
        return 0.0

    def open_adapter(self, folder: Path) -> Any:
        """Raise UnsupportedModelError: the reference serves none."""
        raise UnsupportedModelError("The reference backend serves no LoRA adapters; use --device cpu.")

    def set_adapter(self, slot: int, adapter: Any) -> None:
        """There is nothing to set: none can be opened."""

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

    def forward(self, plan: ReferencePlan, x: Tensor) -> Tensor:
        """Return x after the last layer."""
        for layer in range(self.num_layers):
            x = self.mlp(plan, layer, self.attend(plan, layer, x))
        return x

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

    def logits(self, plan: ReferencePlan, x: Tensor, wanted: slice = ALL) -> NDArray[np.float32]:
        """Return float32 [L, vocab_size] for the step's `logit_tokens[wanted]`."""
        normed, _ = rms_norm(
            x[plan.logit_tokens[wanted]], self.weights.final_norm, self.spec.final_norm.eps, workers=self._workers
        )
        result: NDArray[np.float32] = linear(normed, self.weights.head, None, self._workers).numpy()
        return result

    def last_hidden(self, plan: ReferencePlan, x: Tensor, tokens: slice) -> NDArray[np.float32]:
        """Return float32 [n, hidden_size], x of `tokens` behind the final norm."""
        normed, _ = rms_norm(x[tokens], self.weights.final_norm, self.spec.final_norm.eps, workers=self._workers)
        result: NDArray[np.float32] = normed.numpy()
        return result
