"""Packing of weights into memory that Python owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from octavo_kernels.cpu._native import Pool, Weight, pack_into, plan_packing

PACKING_VERSION: Final = 7
"""Raised whenever packing makes other bytes of the same source and target: files of packed weights carry it."""

ALIGNMENT: Final = 64
"""Bytes of a cache line: of a weight that does not begin with one, every load touches two."""


def pack(
    pool: Pool, kind: str, planes: Sequence[NDArray[Any]], k: int, target: str = "", gate_up: bool = False
) -> Weight:
    """Return matrices of k columns, below each other, as one packed weight.

    kind: F32, F16, BF16 or a GGUF type (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q6_K). planes: [rows, anything], as files
    hold them. target: for float kinds F32, BF16, INT8 or INT4 (groups of 32), or "" for their own precision. gate_up:
    the planes are the gate and the up projection of one gated product. Raises ValueError for what cannot be packed.
    """
    rows = [np.ascontiguousarray(plane).view(np.uint8).reshape(plane.shape[0], -1) for plane in planes]
    n = sum(plane.shape[0] for plane in rows)
    layout, size = plan_packing(kind, n, k, target)
    data = aligned_bytes(size)
    pack_into(pool, kind, rows, k, target, gate_up, data)
    return Weight(layout, n, k, gate_up, data)


def panel_columns(features: int) -> tuple[NDArray[np.intp], int]:
    """Return where a gated product's gate features stand in its panels, and how many columns these have in all.

    The up projection's features stand 16 columns further on.
    """
    at = np.arange(features)
    return at // 16 * 32 + at % 16, -(-features // 16) * 32


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Return uninitialised memory that begins with a cache line."""
    room = np.empty(size + ALIGNMENT, dtype=np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    return room[begin : begin + size]
