"""Random weights in the formats of files, with what they mean in floats."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from octavo_kernels.cpu._native import Pool, pack_into, plan_packing
from octavo_kernels.cpu.weights import aligned_bytes

# Weights of a block, its bytes, and where its half-precision factors lie.
_BLOCKS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "Q8_0": (32, 34, (0,)),
    "Q4_0": (32, 18, (0,)),
    "Q4_1": (32, 20, (0, 2)),
    "Q5_0": (32, 22, (0,)),
    "Q5_1": (32, 24, (0, 2)),
    "Q4_K": (256, 144, (0, 2)),
    "Q6_K": (256, 210, (208,)),
}
GGUF_KINDS = tuple(_BLOCKS)
QUANTISED = (*GGUF_KINDS, "INT8", "INT4")
FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K", "INT4")
EIGHT_BITS = ("Q5_0", "Q5_1", "Q6_K", "Q8_0", "INT8")
FLOATS = ("F32", "BF16")


def unit(kind: str) -> int:
    """Return the number of columns that a row of `kind` is a multiple of."""
    return _BLOCKS[kind][0] if kind in _BLOCKS else 32 if kind in QUANTISED else 1


def sample(kind: str, n: int, k: int, seed: int = 0) -> tuple[str, str, NDArray[Any], NDArray[np.float32]]:
    """Return (kind in the file, target, plane [n, …], the weights as float32, once packed)."""
    rng = np.random.default_rng(seed)
    if kind in _BLOCKS:
        count, size, factors = _BLOCKS[kind]
        blocks = rng.integers(0, 256, (n, k // count, size), dtype=np.uint8)
        for at in factors:
            values = rng.uniform(-0.02, 0.02, (n, k // count, 1)).astype(np.float16)
            blocks[:, :, at : at + 2] = values.view(np.uint8)
        plane = blocks.reshape(n, -1)
        return kind, "", plane, as_packed(kind, packed(kind, plane, k), k)[:n]
    weights = rng.standard_normal((n, k), dtype=np.float32)
    if kind == "F32":
        return "F32", "", weights, weights
    if kind == "BF16":
        bits = (weights.view(np.uint32) >> 16).astype(np.uint16)
        return "BF16", "", bits, (bits.astype(np.uint32) << 16).view(np.float32)
    return "F32", kind, weights, as_quantised(kind, weights)


def as_in_file(kind: str, plane: NDArray[np.uint8], k: int) -> NDArray[np.float32]:
    """Return what the blocks of a GGUF kind mean."""
    return dequantize(plane, GGMLQuantizationType[kind]).reshape(-1, k)


def as_quantised(kind: str, weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what --quantization makes of weights [n, k], as their packed bytes say."""
    n, k = weights.shape
    return as_packed(kind, packed_bytes(kind, weights), k)[:n]


def packed_bytes(kind: str, weights: NDArray[np.float32], pool: Pool | None = None) -> NDArray[np.uint8]:
    """Return the bytes of float weights [n, k] at INT8 or INT4."""
    return packed("F32", weights, weights.shape[1], kind, pool)


def packed(source: str, plane: NDArray[Any], k: int, target: str = "", pool: Pool | None = None) -> NDArray[np.uint8]:
    """Return the bytes of a plane [n, anything] of k columns."""
    data = aligned_bytes(plan_packing(source, len(plane), k, target)[1])
    pack_into(pool or Pool(1), source, [plane.view(np.uint8).reshape(len(plane), -1)], k, target, False, data)
    return data


def as_packed(kind: str, data: NDArray[np.uint8], k: int) -> NDArray[np.float32]:
    """Return the weights [padded n, k] of packed 4 or 8 bits."""
    units, integers = read_units(kind, data, k)
    return (units * integers.astype(np.float32)).reshape(-1, k)


def chunks(k: int) -> list[int]:
    """Return how many groups of 32 each chunk of a row of k has."""
    groups = k // 32
    count = -(-groups // 32)
    size = -(-groups // count)
    size += size % 2
    return [min(size, groups - at) for at in range(0, groups, size)]


def read_units(kind: str, data: NDArray[np.uint8], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return units [padded n, groups, 1] and the integers [padded n, groups, 32] that they are multiplied by."""
    read, size = (_four_bits, 608) if kind in FOUR_BITS else (_eight_bits, 1024)
    panels = data.reshape(-1, sum(128 + size * count for count in chunks(k)))
    units, integers, at = [], [], 0
    for count in chunks(k):
        unit = panels[:, at : at + 128].copy().view(np.float32).reshape(-1, 1, 1)
        records = panels[:, at + 128 : at + 128 + size * count].reshape(len(panels), count, size)
        at += 128 + size * count
        units.append(np.repeat(unit, count, axis=1))
        integers.append(read(records))
    return np.concatenate(units, axis=1), np.concatenate(integers, axis=1)


def _four_bits(records: NDArray[np.uint8]) -> NDArray[np.int64]:
    panels, count = records.shape[:2]
    nibbles = records[..., :512].reshape(panels, count, 32, 16)
    quants = np.concatenate([nibbles & 15, nibbles >> 4], axis=3).astype(np.int64)
    steps = records[..., 512:544].astype(np.int64)[..., None]
    bases = records[..., 544:].copy().view(np.uint16).astype(np.int64)[..., None]
    values = 16 * steps * quants + bases
    assert values.max() < 1 << 16
    # Half, four features apart, and which of them: [half, feature % 4, feature % 16 / 4].
    integers = ((values >> 8) - 128).reshape(panels, count, 2, 4, 4, 32)
    return integers.transpose(0, 2, 4, 3, 1, 5).reshape(-1, count, 32)


def _eight_bits(records: NDArray[np.uint8]) -> NDArray[np.int64]:
    count = records.shape[1]
    quants = records.reshape(-1, count, 8, 32, 4).transpose(0, 3, 1, 2, 4).reshape(-1, count, 32)
    return quants.astype(np.int64) - 128
