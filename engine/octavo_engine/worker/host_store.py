"""The host tier's memory: evicted KV blocks as the layout exports them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo_engine.core.step import BlockTransfer
from octavo_engine.worker.executable import KVLayout


class HostStore:
    """Per group one array [places, bytes of a block] beside the cache of a layout."""

    def __init__(self, layout: KVLayout, num_places: Sequence[int]) -> None:
        """Allocate and touch `num_places[g]` places for each group. Raises MemoryError if they cannot be had.

        The layout's own cache must be allocated.
        """
        self._layout = layout
        sizes = [len(layout.export_block(group, 0)) for group in range(len(layout.groups))]
        self._places: list[NDArray[np.uint8]] = [
            np.full((places, size), 0, np.uint8) for places, size in zip(num_places, sizes, strict=True)
        ]

    def move(self, transfers: Sequence[BlockTransfer]) -> None:
        """Save and load blocks in the order given."""
        for group, block, place, saves in transfers:
            stored = self._places[group][place]
            if saves:
                stored[:] = np.frombuffer(self._layout.export_block(group, block), np.uint8)
            else:
                self._layout.import_block(group, block, stored.tobytes())
