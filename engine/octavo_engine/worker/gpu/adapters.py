"""LoRA adapters on the device: of each layer and product one bank, in which every slot is an adapter.

The banks are made when the first adapter comes and grow with slots and ranks: a service without adapters has none. A
step with adapted rows is never replayed from a graph, so a bank may move.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_engine.model.spec import LayerSpec, ModelSpec
from octavo_engine.worker.gpu.sharding import Shard, columns_of, rows_of, shard_spec
from octavo_kernels.triton.lora import LoraBank, make_bank

if TYPE_CHECKING:  # reading files takes more than numpy and torch, and what computes takes no more
    from octavo_engine.model.adapter import Adapter, AdapterPart

PRODUCTS: Final[Mapping[str, tuple[str, ...]]] = {
    "qkv": ("q", "k", "v"),
    "output": ("o",),
    "gate_up": ("gate", "up"),
    "down": ("down",),
}
"""The products of a layer, and the projections that each joins."""


class Factors(NamedTuple):
    """What an adapter adds to one product: scale · b · a, float32 a [rank, K] and b [N, rank]."""

    a: NDArray[np.float32]
    b: NDArray[np.float32]
    scale: float


class GpuAdapter(NamedTuple):
    """An opened adapter, one rank's share of it, in host memory. layers: by product, what has no part is missing."""

    digest: str
    folder: Path
    layers: tuple[Mapping[str, Factors], ...]


class LayerBanks(NamedTuple):
    """The banks of one layer's products; None where no adapter has changed one yet."""

    qkv: LoraBank | None = None
    output: LoraBank | None = None
    gate_up: LoraBank | None = None
    down: LoraBank | None = None


class AdapterBank:
    """All layers' banks of one rank's model."""

    def __init__(self, spec: ModelSpec, shard: Shard, dtype: torch.dtype, device: torch.device) -> None:
        """`spec` is the whole model's; `dtype` the activations'. No memory is taken yet."""
        self._whole, self._spec, self._shard = spec, shard_spec(spec, shard), shard
        self._dtype, self._device = dtype, device
        self._adapters: dict[int, GpuAdapter] = {}
        self.slots = 0
        """Adapters that the banks have room for."""
        self.layers = [LayerBanks()] * len(spec.layers)

    def open(self, folder: Path) -> GpuAdapter:
        """Read an adapter's files: on any thread, beside steps. Raises UnsupportedModelError."""
        from octavo_engine.model.adapter import open_adapter

        adapter = open_adapter(folder, self._whole)
        layers = tuple(self._factors(adapter, index) for index in range(len(self._whole.layers)))
        return GpuAdapter(adapter.digest, folder, layers)

    def set(self, slot: int, adapter: GpuAdapter | None) -> None:
        """Make `slot` mean an adapter, or nothing, for the steps queued from now on.

        Raises MemoryError, with a sentence, if the device has no room for it: everything is as it was then.
        """
        if adapter is None:
            self._adapters.pop(slot, None)
            return
        # Doubled, so that many adapters are not copied for each of them.
        slots = self.slots if slot < self.slots else max(slot + 1, 2 * self.slots)
        adapters = self._adapters | {slot: adapter}
        try:
            layers = [self._with_room(index, slots, adapter, adapters) for index in range(len(self.layers))]
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                f"The GPU has no room for the adapter in {adapter.folder}: unload others, or start with a smaller "
                "--kv-cache-memory."
            ) from error
        self._adapters, self.slots, self.layers = adapters, slots, layers
        for index in range(len(self.layers)):
            self._load(index, slot, adapter)

    def _with_room(self, index: int, slots: int, adapter: GpuAdapter, adapters: Mapping[int, GpuAdapter]) -> LayerBanks:
        """Return a layer's banks with room for all slots and for the adapter's ranks, new ones where there is none."""
        banks = self.layers[index]
        for product in PRODUCTS:
            bank: LoraBank | None = getattr(banks, product)
            factors = adapter.layers[index].get(product)
            rank = max(0 if factors is None else len(factors.a), 0 if bank is None else bank.rank)
            # All banks have room for the same slots: a step's tokens are grouped once for all of them.
            if rank and (bank is None or bank.slots < slots or bank.rank < rank):
                banks = banks._replace(**{product: self._remade(index, product, slots, rank, adapters)})
        return banks

    def _load(self, index: int, slot: int, adapter: GpuAdapter) -> None:
        for product in PRODUCTS:
            bank: LoraBank | None = getattr(self.layers[index], product)
            factors = adapter.layers[index].get(product)
            if bank is None:
                continue
            if factors is None:
                bank.clear(slot)
            else:
                bank.load(slot, self._to_device(factors.a), self._to_device(factors.b), factors.scale)

    def _remade(self, index: int, product: str, slots: int, rank: int, adapters: Mapping[int, GpuAdapter]) -> LoraBank:
        """Return a bank with room for all slots and `rank`, with what the adapters hold."""
        inputs, features = _shape(self._spec, self._spec.layers[index], product)
        bank = make_bank(slots, rank, inputs, features, self._dtype, self._device)
        for slot, adapter in adapters.items():
            factors = adapter.layers[index].get(product)
            if factors is not None:
                bank.load(slot, self._to_device(factors.a), self._to_device(factors.b), factors.scale)
        return bank

    def _to_device(self, values: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(values).to(self._device, self._dtype)

    def _factors(self, adapter: Adapter, index: int) -> dict[str, Factors]:
        found = {}
        for product, projections in PRODUCTS.items():
            parts, begin = [], 0
            for projection in projections:
                name = f"layers.{index}.{projection}"
                width = _features(self._spec.layers[index], projection, self._spec.hidden_size)
                if (part := adapter.parts.get(name)) is not None:
                    parts.append((part, f"{name}.weight", begin, width))
                begin += width
            if parts:
                found[product] = self._join(parts, begin)
        return found

    def _join(self, parts: list[tuple[AdapterPart, str, int, int]], features: int) -> Factors:
        """Join the adapters of projections that are one product: their ranks side by side, each with its own rows."""
        # The greatest, so that none has to be multiplied by more than one: an alpha may be 0.
        scale = max((part.scale for part, *_ in parts), key=abs)
        a = np.concatenate([self._cut_columns(part.a.dequantize(), name) for part, name, *_ in parts])
        b = np.zeros((features, len(a)), dtype=np.float32)
        rank = 0
        for part, name, begin, width in parts:
            values = part.b.dequantize()
            rows = rows_of(name, self._whole, self._shard)
            own = values if rows is None else values[rows]
            share = np.float32(1.0 if part.scale == scale else part.scale / scale)
            b[begin : begin + width, rank : rank + part.rank] = own * share
            rank += part.rank
        return Factors(np.ascontiguousarray(a, dtype=np.float32), b, scale)

    def _cut_columns(self, a: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        columns = columns_of(name, self._whole, self._shard)
        return a if columns is None else a[:, columns]


def _features(layer: LayerSpec, projection: str, hidden: int) -> int:
    """Return the output features of one rank's projection."""
    attention = layer.attention
    if projection in ("q", "k", "v"):
        return attention.q_size if projection == "q" else attention.kv_size
    return layer.mlp.intermediate_size if projection in ("gate", "up") else hidden


def _shape(spec: ModelSpec, layer: LayerSpec, product: str) -> tuple[int, int]:
    """Return the inputs and the output features of one rank's product."""
    inputs = {"output": layer.attention.q_size, "down": layer.mlp.intermediate_size}.get(product, spec.hidden_size)
    return inputs, sum(_features(layer, projection, spec.hidden_size) for projection in PRODUCTS[product])
