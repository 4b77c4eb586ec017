"""The CPU backend: a `ModelSpec` on the C++ kernels, all layers in one call. numpy holds the memory, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.adapter import open_adapter
from octavo_engine.model.checkpoint import Checkpoint
from octavo_engine.model.rope import rope_table
from octavo_engine.model.spec import LayerSpec, ModelSpec, RopeSpec, UnsupportedModelError
from octavo_engine.worker.backends.cpu_adapters import CpuAdapter, build_adapter
from octavo_engine.worker.backends.cpu_cache import CpuLayout
from octavo_engine.worker.backends.cpu_mixture import Mixture
from octavo_engine.worker.backends.cpu_precision import Precision
from octavo_engine.worker.backends.cpu_weights import Progress, load_matrices, load_norm, load_vectors, packed_bytes
from octavo_engine.worker.cgroup import compute_threads, spin_microseconds
from octavo_engine.worker.executable import ModelStep, Needs
from octavo_kernels.cpu import Layer, LayerLora, Pool, Rope, Step, Weight, embed, forward, logits, rms_norm

Floats = NDArray[np.float32]
_FLOAT_BYTES: Final = 4


def start_pool(threads: int = 0) -> Pool:
    """Return the kernels' threads: `threads`, or for 0 as many as this container may use.

    Raises RuntimeError if OCTAVO_CPU_ISA names what this machine cannot run.
    """
    threads = threads or compute_threads()
    return Pool(threads, spin_microseconds(threads))


def cpu_needs(checkpoint: Checkpoint, precision: Precision, block_size: int, max_model_len: int) -> Needs:
    """Return what a checkpoint will take on this backend; no weight is read. Raises UnsupportedModelError.

    max_model_len: as `build_cpu` will be told.
    """
    spec = checkpoint.spec
    groups = CpuLayout(spec, block_size, precision.cache).groups
    # A longer one than the model's is refused for that, not for its memory.
    positions = min(max_model_len or spec.max_position, spec.max_position)
    angles = sum(rope.dim // 2 for rope in _ropes(spec)) * positions
    return Needs(packed_bytes(checkpoint, precision), 2 * angles * _FLOAT_BYTES, groups, spec.max_position)


def _ropes(spec: ModelSpec) -> set[RopeSpec]:
    return {layer.attention.rope for layer in spec.layers}


def build_cpu(
    checkpoint: Checkpoint,
    digest: str,
    precision: Precision,
    pool: Pool,
    *,
    block_size: int = 16,
    max_model_len: int = 0,
    progress: Progress = lambda stage, fraction: None,
) -> CpuModel:
    """Load a checkpoint for this backend; its files are not needed afterwards.

    digest: the checkpoint's `model_digest`, which names its packed weights. max_model_len: the longest context that
    will be asked for, 0 for the model's own. Raises UnsupportedModelError with a sentence for the user.
    """
    spec = checkpoint.spec
    if max_model_len > spec.max_position:
        raise UnsupportedModelError(
            f"--max-model-len {max_model_len} is beyond the {spec.max_position} positions the model was trained for; "
            f"use at most {spec.max_position}."
        )
    layout = CpuLayout(spec, block_size, precision.cache)
    matrices = load_matrices(checkpoint, digest, precision, pool, progress)
    # A context beyond max_model_len is never asked for: its rotary factors would be memory for nothing.
    positions = max_model_len or spec.max_position
    ropes = {rope: Rope(*rope_table(rope, positions)) for rope in _ropes(spec)}
    layers = [_layer(checkpoint, index, layer, layout, ropes, matrices) for index, layer in enumerate(spec.layers)]
    mixtures = [_mixture(checkpoint, index, layer, matrices) for index, layer in enumerate(spec.layers)]
    final_norm = load_norm(checkpoint, spec.final_norm, "final_norm.weight")
    return CpuModel(spec, layout, layers, matrices, final_norm, pool, positions, mixtures)


def _mixture(checkpoint: Checkpoint, index: int, spec: LayerSpec, matrices: dict[str, Weight]) -> Mixture | None:
    if spec.mlp.moe is None:
        return None
    norm = load_norm(checkpoint, spec.mlp_norm, f"layers.{index}.mlp_norm.weight")
    return Mixture(spec, spec.mlp.moe, norm, index, matrices)


def _layer(
    checkpoint: Checkpoint,
    index: int,
    spec: LayerSpec,
    layout: CpuLayout,
    ropes: dict[RopeSpec, Rope],
    matrices: dict[str, Weight],
) -> Layer:
    attention, vectors = spec.attention, load_vectors(checkpoint, index, spec)
    group, _ = layout.places[index]
    post_attention, post_mlp = spec.post_attention_norm, spec.post_mlp_norm
    return Layer(
        layout=layout.kernels[group],
        heads=attention.num_heads,
        scale=attention.scale,
        rope=ropes[attention.rope],
        attention_norm=vectors.attention_norm,
        attention_eps=spec.attention_norm.eps,
        qkv=matrices[f"layers.{index}.qkv"],
        output=matrices[f"layers.{index}.o"],
        mlp_norm=vectors.mlp_norm,
        mlp_eps=spec.mlp_norm.eps,
        gate_up=matrices.get(f"layers.{index}.gate_up"),
        down=matrices.get(f"layers.{index}.down"),
        qkv_bias=vectors.qkv_bias,
        output_bias=vectors.output_bias,
        gate_up_bias=vectors.gate_up_bias,
        down_bias=vectors.down_bias,
        q_norm=vectors.q_norm,
        k_norm=vectors.k_norm,
        qk_eps=attention.qk_norm.eps if attention.qk_norm else 1e-6,
        post_attention_norm=vectors.post_attention_norm,
        post_attention_eps=post_attention.eps if post_attention else 1e-6,
        post_mlp_norm=vectors.post_mlp_norm,
        post_mlp_eps=post_mlp.eps if post_mlp else 1e-6,
        activation=spec.mlp.activation,
        group=group,
        window=attention.window,
        softcap=attention.logit_softcap,
    )


def _read_bytes(spec: ModelSpec, matrices: dict[str, Weight]) -> int:
    total = 0
    for name, weight in matrices.items():
        parts = name.split(".")
        if parts[0] == "layers" and parts[2] == "experts":
            moe = spec.layers[int(parts[1])].mlp.moe
            total += weight.nbytes * moe.experts_per_token // moe.num_experts if moe else 0
        elif name != "embedding":
            total += weight.nbytes
    return total


def _runs(layers: Sequence[Layer], mixtures: Sequence[Mixture | None]) -> list[tuple[list[Layer], Mixture | None]]:
    """Return the layers that one call computes, and the mixture of experts behind the last of them, if it has one."""
    runs: list[tuple[list[Layer], Mixture | None]] = [([], None)]
    for layer, mixture in zip(layers, mixtures, strict=True):
        if runs[-1][1] is not None:
            runs.append(([], None))
        runs[-1] = ([*runs[-1][0], layer], mixture)
    return runs


class Adaptation(NamedTuple):
    """The adapters of a step's rows, and which of them each token has (int32 [T], -1: none)."""

    adapters: list[Sequence[LayerLora]]
    of_token: NDArray[np.int32]


class CpuPlan(NamedTuple):
    """A step, and what the kernels prepared of it once."""

    step: ModelStep
    native: Step
    adaptation: Adaptation | None


class CpuModel:
    """An `Executable`: x is float32 [T, hidden_size], updated in place."""

    def __init__(
        self,
        spec: ModelSpec,
        layout: CpuLayout,
        layers: Sequence[Layer],
        matrices: dict[str, Weight],
        final_norm: Floats,
        pool: Pool,
        max_position: int,
        mixtures: Sequence[Mixture | None],
    ) -> None:
        self.spec = spec
        self.pool = pool
        self.layout = layout
        self.vocab_size = spec.vocab_size
        self.hidden_size = spec.hidden_size
        self.max_position = max_position
        self.packed_bytes = _read_bytes(spec, matrices)
        """Bytes of packed weights that a decode step of one row reads."""
        self._layers = layers
        self._runs = _runs(layers, mixtures)
        self._head = matrices["head"]
        self._embedding = matrices.get("embedding", self._head)
        self._final_norm = final_norm
        self._adapters: dict[int, CpuAdapter] = {}
        layout.on_allocate = self._bind

    def _bind(self) -> None:
        for index, layer in enumerate(self._layers):
            layer.bind(self.layout.cache(index))

    def kernel_seconds(self) -> float:
        """Return the wall seconds spent inside native calls so far."""
        return self.pool.seconds_inside

    def plan(self, step: ModelStep) -> CpuPlan:
        """Prepare what all layers share. Raises KeyError for an adapter that is not there."""
        native = Step(step.positions, step.row_offsets, step.context_lengths, step.block_tables, step.slots)
        return CpuPlan(step, native, self._adapt(step))

    def _adapt(self, step: ModelStep) -> Adaptation | None:
        if step.adapters.max(initial=-1) < 0:
            return None
        slots, index = np.unique(step.adapters, return_inverse=True)
        used = [slot for slot in slots.tolist() if slot >= 0]
        # Where some rows have none, -1 comes first of what is sorted.
        index = index.astype(np.int32) - np.int32(len(slots) - len(used))
        adapters = [self._adapters[slot].layers for slot in used]
        return Adaptation(adapters, np.repeat(index, np.diff(step.row_offsets)))

    def open_adapter(self, folder: Path) -> CpuAdapter:
        """Read an adapter. Raises UnsupportedModelError."""
        return build_adapter(open_adapter(folder, self.spec), self.spec)

    def set_adapter(self, slot: int, adapter: CpuAdapter | None) -> None:
        """Make `slot` mean an adapter, or nothing."""
        if adapter is None:
            self._adapters.pop(slot, None)
        else:
            self._adapters[slot] = adapter

    def embed(self, plan: CpuPlan) -> Floats:
        """Return x of the step's tokens, before the first layer."""
        x = np.empty((plan.step.tokens.size, self.spec.hidden_size), np.float32)
        embed(self.pool, self._embedding, plan.step.tokens, x, self.spec.embedding_scale)
        return x

    def forward(self, plan: CpuPlan, x: Floats) -> Floats:
        """Return x after the last layer."""
        begin, adaptation = 0, plan.adaptation
        for layers, mixture in self._runs:
            end = begin + len(layers)
            if adaptation is None:
                forward(self.pool, layers, plan.native, x)
            else:
                parts = [adapter[begin:end] for adapter in adaptation.adapters]
                forward(self.pool, layers, plan.native, x, parts, adaptation.of_token)
            begin = end
            if mixture is not None:
                mixture.add(self.pool, x)
        return x

    def logits(self, plan: CpuPlan, x: Floats, wanted: slice = slice(None)) -> Floats:
        """Return float32 [L, vocab_size] for `step.logit_tokens[wanted]`."""
        tokens = plan.step.logit_tokens[wanted]
        out = np.empty((len(tokens), self.vocab_size), np.float32)
        spec = self.spec
        logits(self.pool, self._final_norm, spec.final_norm.eps, self._head, x, tokens, out, spec.logit_softcap)
        return out

    def last_hidden(self, plan: CpuPlan, x: Floats, tokens: slice) -> Floats:
        """Return float32 [n, hidden_size], x of `tokens` behind the final norm."""
        rows = x[tokens]
        out = np.empty_like(rows)
        rms_norm(self.pool, rows, self._final_norm, self.spec.final_norm.eps, out)
        return out
