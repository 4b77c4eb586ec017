"""The model on Triton kernels: a `ModelSpec` and one rank's weights, one step of tokens through all layers.

Everything here is launches on one stream over tensors of fixed places: no value is read back, and what is launched
depends on the step's sizes alone, so that a decode step can be captured in a graph and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from octavo_engine.model.rope import rope_table
from octavo_engine.model.spec import LayerSpec, ModelSpec, RopeSpec
from octavo_engine.worker.gpu.adapters import AdapterBank, GpuAdapter, LayerBanks
from octavo_engine.worker.gpu.attention import GroupAttention
from octavo_engine.worker.gpu.cache import GpuLayout
from octavo_engine.worker.gpu.communicator import Communicator
from octavo_engine.worker.gpu.products import Products
from octavo_engine.worker.gpu.sharding import Shard, shard_spec, vocabulary_rows
from octavo_engine.worker.gpu.weights import LayerWeights, ModelWeights
from octavo_kernels.triton.attention import attention
from octavo_kernels.triton.grouped import GroupPlan
from octavo_kernels.triton.rope_cache import rope_and_cache
from octavo_kernels.triton.rows import embed, gather_rows, gelu_tanh_mul, rms_norm, rms_norm_add, silu_mul, softcap


class GpuStep(NamedTuple):
    """One step of T tokens on the device.

    tokens, positions: int32 [T]. slots: int64 [groups, T], where keys and values go. attention: per KV group the work
    list, whose rows of block tables are slots of the batch. tables: int32 [groups, slots, max blocks]. adapters: how
    the tokens are grouped by their adapters, None where none has one.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    attention: Sequence[GroupAttention]
    tables: Tensor
    adapters: GroupPlan | None = None


class GpuModel:
    """One rank's part of a model. x, the residual stream, is [T, hidden size] in the activations' type."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        layout: GpuLayout,
        products: Products,
        bank: AdapterBank,
        *,
        shard: Shard,
        communicator: Communicator,
        max_position: int,
        max_tokens: int,
    ) -> None:
        """`spec` is the whole model's. max_position: the longest context to be asked for; max_tokens: of a step."""
        self.spec = shard_spec(spec, shard)
        self.layout = layout
        self.weights = weights
        self.vocab_size = spec.vocab_size
        self.hidden_size = spec.hidden_size
        self.max_position = max_position
        self.max_tokens = max_tokens
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self.products = products
        self.bank = bank
        self.communicator = communicator
        self._vocabulary = vocabulary_rows(spec.vocab_size, shard)
        self._factors = _factors(self.spec, max_position, self.device)
        configurations = products.configurations
        self._rows = configurations.rows(spec.hidden_size)
        self._inner = [configurations.rows(layer.mlp.intermediate_size) for layer in self.spec.layers]
        self._rotation = [configurations.rope_cache(layer.attention.head_dim) for layer in self.spec.layers]
        heads = max(layer.attention.q_size for layer in self.spec.layers)
        # Tokens of no row, which pad a graph's batch, are never attended: what stays there must be finite.
        self._attended = torch.zeros(max_tokens * heads, dtype=self.dtype, device=self.device)

    def open_adapter(self, folder: Path) -> GpuAdapter:
        """Read a LoRA adapter: on any thread, beside steps. Raises UnsupportedModelError."""
        return self.bank.open(folder)

    def forward(self, step: GpuStep) -> Tensor:
        """Return x after the last layer; what the step's tokens leave in the cache is written."""
        x = self._empty(step, self.hidden_size)
        embed(
            self.weights.embedding,
            step.tokens,
            x,
            self.spec.embedding_scale,
            self._vocabulary.start,
            tuning=self._rows,
        )
        self.communicator.all_reduce(x)
        first = self.spec.layers[0]
        normed = rms_norm(
            x, self.weights.layers[0].attention_norm, first.attention_norm.eps, torch.empty_like(x), tuning=self._rows
        )
        for index, (layer, weights) in enumerate(zip(self.spec.layers, self.weights.layers, strict=True)):
            banks = self.bank.layers[index]
            attended = self._attend(step, index, layer, weights, banks, normed)
            normed = self._add(x, attended, normed, weights.post_attention_norm, layer, weights.mlp_norm)
            fed = self._feed(step, index, layer, weights, banks, normed)
            last = index + 1 == len(self.spec.layers)
            following = None if last else self.weights.layers[index + 1].attention_norm
            normed = self._add(x, fed, normed, weights.post_mlp_norm, layer, following)
        return x

    def logits(self, x: Tensor, tokens: Tensor, out: Tensor | None = None) -> Tensor:
        """Return float32 [L, vocabulary] for the step's tokens int [L], on every rank; in `out` if it is given."""
        normed = self.last_hidden(x, tokens)
        shape = (len(tokens), self.vocab_size)
        whole = torch.empty(shape, dtype=torch.float32, device=self.device) if out is None else out
        own = whole if self.communicator.size == 1 else whole.new_empty((len(tokens), self.weights.head.rows))
        self.products(normed, self.weights.head, out=own)
        self.communicator.all_gather_columns(own, whole)
        if self.spec.logit_softcap:
            softcap(whole, self.spec.logit_softcap)
        return whole

    def last_hidden(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return [L, hidden size], x of the step's tokens int [L] behind the final norm: what the head sees."""
        rows = gather_rows(x, tokens, x.new_empty((len(tokens), self.hidden_size)), tuning=self._rows)
        norm, eps = self.weights.final_norm, self.spec.final_norm.eps
        return rms_norm(rows, norm, eps, torch.empty_like(rows), tuning=self._rows)

    def _attend(
        self,
        step: GpuStep,
        index: int,
        layer: LayerSpec,
        weights: LayerWeights,
        banks: LayerBanks,
        normed: Tensor,
    ) -> Tensor:
        """Return what the attention block adds to x."""
        spec, (group, _) = layer.attention, self.layout.places[index]
        qkv = self.products(normed, weights.qkv)
        if step.adapters is not None:
            self.products.adapt(normed, banks.qkv, step.adapters, qkv)
        q = self._empty(step, spec.q_size).view(-1, spec.num_heads, spec.head_dim)
        cos, sin = self._factors[spec.rope]
        cache = self.layout.cache(index)
        rope_and_cache(
            qkv,
            step.positions,
            step.slots[group],
            cos,
            sin,
            cache,
            q,
            bias=weights.qkv_bias,
            q_weight=weights.q_norm,
            k_weight=weights.k_norm,
            eps=spec.qk_norm.eps if spec.qk_norm else 0.0,
            tuning=self._rotation[index],
        )
        attended = self._attended[: q.numel()].view(q.shape)
        attention(
            q,
            cache,
            step.attention[group].work,
            step.tables[group],
            attended,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.logit_softcap,
            tuning=step.attention[group].tuning,
        )
        flat = attended.view(len(step.tokens), -1)
        result = self.products(flat, weights.output, bias=weights.output_bias)
        if step.adapters is not None:
            self.products.adapt(flat, banks.output, step.adapters, result)
        self.communicator.all_reduce(result)
        return result

    def _feed(
        self, step: GpuStep, index: int, layer: LayerSpec, weights: LayerWeights, banks: LayerBanks, normed: Tensor
    ) -> Tensor:
        """Return what the feed-forward block adds to x."""
        if weights.experts is not None and layer.mlp.moe is not None:
            result = self.products.mixture(normed, weights.experts, layer.mlp.moe, layer.mlp.activation)
        else:
            result = self._feed_dense(step, index, layer, weights, banks, normed)
        self.communicator.all_reduce(result)
        return result

    def _feed_dense(
        self, step: GpuStep, index: int, layer: LayerSpec, weights: LayerWeights, banks: LayerBanks, normed: Tensor
    ) -> Tensor:
        assert weights.gate_up is not None
        assert weights.down is not None
        gate_up = self.products(normed, weights.gate_up, bias=weights.gate_up_bias)
        if step.adapters is not None:
            self.products.adapt(normed, banks.gate_up, step.adapters, gate_up)
        activate = silu_mul if layer.mlp.activation == "silu" else gelu_tanh_mul
        inner = activate(gate_up, self._empty(step, layer.mlp.intermediate_size), tuning=self._inner[index])
        result = self.products(inner, weights.down, bias=weights.down_bias)
        if step.adapters is not None:
            self.products.adapt(inner, banks.down, step.adapters, result)
        return result

    def _add(
        self,
        x: Tensor,
        added: Tensor,
        normed: Tensor,
        post_norm: Tensor | None,
        layer: LayerSpec,
        next_norm: Tensor | None,
    ) -> Tensor:
        """Add a block's output to x, behind its own norm if it has one, and return the norm of that."""
        eps = layer.mlp_norm.eps
        if post_norm is not None:
            rms_norm_add(added, post_norm, eps, x, next_norm, normed if next_norm is not None else None, self._rows)
        elif next_norm is not None:
            rms_norm(added, next_norm, eps, normed, residual=x, tuning=self._rows)
        else:
            x += added
        return normed

    def _empty(self, step: GpuStep, width: int) -> Tensor:
        return torch.empty((len(step.tokens), width), dtype=self.dtype, device=self.device)


def _factors(spec: ModelSpec, positions: int, device: torch.device) -> Mapping[RopeSpec, tuple[Tensor, Tensor]]:
    """Return each rope's (cos, sin), float32 [positions, dim / 2]."""
    tables = {}
    for rope in {layer.attention.rope for layer in spec.layers}:
        cos, sin = rope_table(rope, positions)
        tables[rope] = (torch.from_numpy(cos).to(device), torch.from_numpy(sin).to(device))
    return tables
