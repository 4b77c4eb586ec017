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
        meaning = four_bit_weights(packed(kind, plane, k), k)[:n] if kind in FOUR_BITS else as_in_file(kind, plane, k)
        return kind, "", plane, meaning
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
    data = packed_bytes(kind, weights)
    if kind == "INT4":
        return four_bit_weights(data, k)[:n]
    quants, scales = read_records(data, k)
    return ((quants - 128) * scales).reshape(-1, k)[:n]


def packed_bytes(kind: str, weights: NDArray[np.float32], pool: Pool | None = None) -> NDArray[np.uint8]:
    """Return the bytes of float weights [n, k] at INT8 or INT4."""
    return packed("F32", weights, weights.shape[1], kind, pool)


def packed(source: str, plane: NDArray[Any], k: int, target: str = "", pool: Pool | None = None) -> NDArray[np.uint8]:
    """Return the bytes of a plane [n, anything] of k columns."""
    data = aligned_bytes(plan_packing(source, len(plane), k, target)[2])
    pack_into(pool or Pool(1), source, [plane.view(np.uint8).reshape(len(plane), -1)], k, target, False, data)
    return data


def four_bit_weights(data: NDArray[np.uint8], k: int) -> NDArray[np.float32]:
    """Return the weights [padded n, k] of packed 4 bits."""
    units, steps, middles, quants = read_chunks(data, k)
    return (units * (steps * (quants - 8) + middles).astype(np.float32)).reshape(-1, k)


def read_records(data: NDArray[np.uint8], k: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the quants [padded n, k / 32, 32] and scales [padded n, k / 32, 1] of packed INT8."""
    records = data.reshape(-1, k // 32, 1024 + 64)
    quants = records[..., :1024].reshape(len(records), k // 32, 8, 32, 4)
    scales = records[..., 1024:].copy().view(np.float16).transpose(0, 2, 1).reshape(-1, k // 32, 1)
    quants = quants.transpose(0, 3, 1, 2, 4).reshape(-1, k // 32, 32)
    return quants.astype(np.float32), scales.astype(np.float32)


def chunks(k: int) -> list[int]:
    """Return how many groups of 32 each chunk of a row of k has."""
    groups = k // 32
    count = -(-groups // 32)
    size = -(-groups // count)
    size += size % 2
    return [min(size, groups - at) for at in range(0, groups, size)]


def read_chunks(data: NDArray[np.uint8], k: int) -> tuple[NDArray[Any], ...]:
    """Return units [padded n, groups, 1], steps, middles (the same) and quants [padded n, groups, 32] of 4-bit weights.

    The quants are int64; a weight is unit * (step * (quant - 8) + middle).
    """
    panels = data.reshape(-1, sum(128 + 640 * count for count in chunks(k)))
    found: list[list[NDArray[Any]]] = [[], [], [], []]
    at = 0
    for count in chunks(k):
        units = panels[:, at : at + 128].copy().view(np.float32).reshape(-1, 1)
        records = panels[:, at + 128 : at + 128 + 640 * count].reshape(len(panels), count, 640)
        at += 128 + 640 * count
        packed = records[..., :512].reshape(len(panels), count, 8, 16, 4)
        quants = np.concatenate([packed & 15, packed >> 4], axis=3).transpose(0, 3, 1, 2, 4).reshape(-1, count, 32)
        factors = records[..., 512:].copy().view(np.int16).reshape(len(panels), count, 32, 2).transpose(3, 0, 2, 1)
        steps, middles = factors.reshape(2, -1, count, 1).astype(np.int64)
        for list_, values in zip(found, (np.repeat(units, count, 1)[..., None], steps, middles, quants), strict=True):
            list_.append(values)
    units, steps, middles, quants = (np.concatenate(values, axis=1) for values in found)
    return units, steps, middles, quants.astype(np.int64)
