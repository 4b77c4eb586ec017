"""The reference backend's KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from octavo_engine.model.spec import AttentionSpec, ModelSpec, UnsupportedModelError
from octavo_engine.worker.executable import KVGroup

_FLOAT32_BYTES = 4


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
