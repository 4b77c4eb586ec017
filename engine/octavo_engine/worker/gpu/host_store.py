"""The host tier's memory beside a GPU: evicted KV blocks in pinned memory, moved without waiting.

Copies are queued in the order of the plans, between the steps that wrote a block and that read it: nothing else has to
be waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo_engine.core.step import BlockTransfer
from octavo_engine.worker.gpu.cache import GpuLayout


class GpuHostStore:
    """Per group one tensor [places, layers, 2, kv heads, 16, head dimension] on the host."""

    def __init__(self, layout: GpuLayout, num_places: Sequence[int]) -> None:
        """Allocate `num_places[g]` places for each group. Raises MemoryError if they cannot be had.

        The layout's own cache must be allocated.
        """
        self._layout = layout
        pinned = layout.device.type == "cuda"
        try:
            self._places: list[Tensor] = [
                torch.zeros((places, cache.shape[0], *cache.shape[2:]), dtype=cache.dtype, pin_memory=pinned)
                for places, cache in zip(num_places, layout.caches, strict=True)
            ]
        except RuntimeError as error:
            raise MemoryError(str(error)) from error

    def move(self, transfers: Sequence[BlockTransfer]) -> None:
        """Queue the saves and loads in the order given."""
        for group, block, place, saves in transfers:
            cached, stored = self._layout.caches[group][:, block], self._places[group][place]
            if saves:
                stored.copy_(cached, non_blocking=True)
            else:
                cached.copy_(stored, non_blocking=True)
