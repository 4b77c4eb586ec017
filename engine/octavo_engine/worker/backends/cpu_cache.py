"""The CPU backend's KV cache: per group one array [layers, blocks, bytes of a block], in the kernels' own layout."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.spec import AttentionSpec, ModelSpec, UnsupportedModelError
from octavo_engine.worker.executable import KVGroup
from octavo_kernels.cpu import CacheLayout

KERNEL_BLOCK_SIZE: Final = 16


class CpuLayout:
    """`KVLayout` of one cache type (f32, bf16, int8) for all layers. Layers of one window form a group."""

    def __init__(self, spec: ModelSpec, block_size: int, dtype: str) -> None:
        if block_size != KERNEL_BLOCK_SIZE:
            raise UnsupportedModelError(
                f"--block-size {block_size} is not served on a CPU, whose kernels have blocks of {KERNEL_BLOCK_SIZE} "
                f"tokens: use --block-size {KERNEL_BLOCK_SIZE}."
            )
        self.block_size = block_size
        self.dtype = dtype
        windows = sorted({layer.attention.window for layer in spec.layers})
        members = [[layer.attention for layer in spec.layers if layer.attention.window == window] for window in windows]
        self.kernels = tuple(_kernel_layout(layers, dtype) for layers in members)
        """The layout of a layer's block, per group."""
        self._layers = [len(layers) for layers in members]
        self.groups = tuple(
            KVGroup(window, layers * kernel.block_bytes)
            for window, layers, kernel in zip(windows, self._layers, self.kernels, strict=True)
        )
        counters = [iter(range(layers)) for layers in self._layers]
        self.places = tuple(
            (group, next(counters[group])) for group in (windows.index(layer.attention.window) for layer in spec.layers)
        )
        """(group, index within the group) of each layer."""
        self.caches: list[NDArray[np.uint8]] = []
        self.on_allocate: Callable[[], None] = lambda: None
        """Called when there are new caches."""

    def allocate(self, num_blocks: Sequence[int]) -> None:
        """Allocate and touch `num_blocks[g]` blocks for each group. Raises MemoryError if they cannot be had."""
        self.caches = []
        for blocks, layers, kernel in zip(num_blocks, self._layers, self.kernels, strict=True):
            self.caches.append(_touched_memory(layers * blocks * kernel.block_bytes).reshape(layers, blocks, -1))
        self.on_allocate()

    def cache(self, layer: int) -> NDArray[np.uint8]:
        """Return one layer's cache, [num_blocks, bytes of a block]."""
        group, index = self.places[layer]
        cache: NDArray[np.uint8] = self.caches[group][index]
        return cache

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) of a group, in order."""
        cache = self.caches[group]
        for source, target in pairs:
            cache[:, target] = cache[:, source]

    def export_block(self, group: int, block: int) -> bytes:
        """Return one block over all layers of its group."""
        return self.caches[group][:, block].tobytes()

    def import_block(self, group: int, block: int, data: bytes) -> None:
        """Write what `export_block` returned. Raises ValueError if it is not one block of this layout."""
        size = self.groups[group].bytes_per_block
        if len(data) != size:
            raise ValueError(f"A block of KV group {group} has {size} bytes, not {len(data)}.")
        target = self.caches[group][:, block]
        target[:] = np.frombuffer(data, dtype=np.uint8).reshape(target.shape)


def _kernel_layout(layers: Sequence[AttentionSpec], dtype: str) -> CacheLayout:
    sizes = {(layer.num_kv_heads, layer.head_dim) for layer in layers}
    if len(sizes) != 1:
        raise UnsupportedModelError("Layers of one attention window differ in their KV sizes, which is not served yet.")
    return CacheLayout(dtype, *sizes.pop())


def _touched_memory(size: int) -> NDArray[np.uint8]:
    """Return zeroed memory that is there: a machine that has less says so now, not in the middle of a request."""
    try:
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"{size / 2**30:.2f}Gi of KV blocks do not fit; lower --kv-cache-memory") from error
    # Huge pages make touching five times as fast, and attention misses fewer address translations.
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    data: NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8, count=size)
    data[:: mmap.PAGESIZE] = 0
    return data
