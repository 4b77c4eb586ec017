"""The GPU's KV cache: per group one tensor [layers, blocks, 2, kv heads, 16, head dimension], keys then values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from octavo_engine.model.spec import AttentionSpec, ModelSpec, UnsupportedModelError
from octavo_engine.worker.executable import KVGroup

KERNEL_BLOCK_SIZE: Final = 16
CACHE_TYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}


class GpuLayout:
    """`KVLayout` of one cache type for all layers, on one device. Layers of one window form a group."""

    def __init__(self, spec: ModelSpec, block_size: int, dtype: str, device: torch.device) -> None:
        """Lay out the cache of what `spec` computes: with tensor parallelism one rank's share of the heads."""
        if block_size != KERNEL_BLOCK_SIZE:
            raise UnsupportedModelError(
                f"--block-size {block_size} is not served on a GPU, whose kernels have blocks of {KERNEL_BLOCK_SIZE} "
                f"tokens: use --block-size {KERNEL_BLOCK_SIZE}."
            )
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        windows = sorted({layer.attention.window for layer in spec.layers})
        self.members = tuple(
            tuple(index for index, layer in enumerate(spec.layers) if layer.attention.window == window)
            for window in windows
        )
        """The layers of each group."""
        self.attention = tuple(
            _one_size([spec.layers[index].attention for index in members]) for members in self.members
        )
        """What the layers of each group have in common."""
        self.type = CACHE_TYPES[dtype]
        self.groups = tuple(
            KVGroup(window, len(members) * 2 * attention.kv_size * block_size * self.type.itemsize)
            for window, members, attention in zip(windows, self.members, self.attention, strict=True)
        )
        self.places = {
            layer: (group, index) for group, members in enumerate(self.members) for index, layer in enumerate(members)
        }
        """(group, index within the group) of each layer."""
        self.caches: list[Tensor] = []

    def allocate(self, num_blocks: Sequence[int]) -> None:
        """Allocate and touch `num_blocks[g]` blocks for each group. Raises MemoryError if they cannot be had."""
        self.caches = []
        for blocks, members, attention in zip(num_blocks, self.members, self.attention, strict=True):
            shape = (len(members), blocks, 2, attention.num_kv_heads, self.block_size, attention.head_dim)
            try:
                # A device's memory is there when it is allocated; what is read before it is written must be finite.
                cache = torch.zeros(shape, dtype=self.type, device=self.device)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                raise MemoryError(f"{blocks} KV blocks do not fit on the device; lower --kv-cache-memory") from error
            self.caches.append(cache)

    def cache(self, layer: int) -> Tensor:
        """Return one layer's cache, [blocks, 2, kv heads, 16, head dimension]."""
        group, index = self.places[layer]
        return self.caches[group][index]

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) of a group, in order."""
        cache = self.caches[group]
        for source, target in pairs:
            cache[:, target].copy_(cache[:, source])

    def export_block(self, group: int, block: int) -> bytes:
        """Return one block over all layers of its group."""
        return self._bytes(group, block).cpu().numpy().tobytes()

    def import_block(self, group: int, block: int, data: bytes) -> None:
        """Write what `export_block` returned. Raises ValueError if it is not one block of this layout."""
        size = self.groups[group].bytes_per_block
        if len(data) != size:
            raise ValueError(f"A block of KV group {group} has {size} bytes, not {len(data)}.")
        target = self.caches[group][:, block].view(torch.uint8)
        target.copy_(torch.from_numpy(np.frombuffer(data, np.uint8).copy()).view(target.shape))

    def _bytes(self, group: int, block: int) -> Tensor:
        return self.caches[group][:, block].contiguous().view(torch.uint8)


def _one_size(layers: Sequence[AttentionSpec]) -> AttentionSpec:
    if len({(layer.num_heads, layer.num_kv_heads, layer.head_dim) for layer in layers}) != 1:
        raise UnsupportedModelError("Layers of one attention window differ in their heads, which is not served yet.")
    return layers[0]
