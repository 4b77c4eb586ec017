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
FLOATS = ("F32", "BF16")


def unit(kind: str) -> int:
    """Return the number of columns that a row of `kind` is a multiple of."""
    return _BLOCKS[kind][0] if kind in _BLOCKS else 32 if kind in QUANTISED else 1


def sample(kind: str, n: int, k: int, seed: int = 0) -> tuple[str, str, NDArray[Any], NDArray[np.float32]]:
    """Return (kind in the file, target, plane [n, …], the weights as float32)."""
    rng = np.random.default_rng(seed)
    if kind in _BLOCKS:
        count, size, factors = _BLOCKS[kind]
        blocks = rng.integers(0, 256, (n, k // count, size), dtype=np.uint8)
        for at in factors:
            values = rng.uniform(-0.02, 0.02, (n, k // count, 1)).astype(np.float16)
            blocks[:, :, at : at + 2] = values.view(np.uint8)
        plane = blocks.reshape(n, -1)
        return kind, "", plane, dequantize(plane, GGMLQuantizationType[kind]).reshape(n, k)
    weights = rng.standard_normal((n, k), dtype=np.float32)
    if kind == "F32":
        return "F32", "", weights, weights
    if kind == "BF16":
        bits = (weights.view(np.uint32) >> 16).astype(np.uint16)
        return "BF16", "", bits, (bits.astype(np.uint32) << 16).view(np.float32)
    return "F32", kind, weights, as_quantised(kind, weights)


def as_quantised(kind: str, weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what --quantization makes of weights [n, k], as their packed bytes say."""
    n, k = weights.shape
    quants, scales, minima = read_records(packed_bytes(kind, weights), k, kind)
    return ((quants - (128 if kind == "INT8" else 0)) * scales + minima).reshape(-1, k)[:n]


def packed_bytes(kind: str, weights: NDArray[np.float32], pool: Pool | None = None) -> NDArray[np.uint8]:
    """Return the records of float weights [n, k] at INT8 or INT4."""
    n, k = weights.shape
    data = aligned_bytes(plan_packing("F32", n, k, kind)[2])
    pack_into(pool or Pool(1), "F32", [weights.view(np.uint8)], k, kind, False, data)
    return data


def read_records(data: NDArray[np.uint8], k: int, kind: str) -> tuple[NDArray[np.float32], ...]:
    """Return the quants [padded n, k / 32, 32], scales and minima [padded n, k / 32, 1] of packed INT8 or INT4."""
    size = 1024 if kind == "INT8" else 512
    planes = 1 if kind == "INT8" else 2
    records = data.reshape(-1, k // 32, size + planes * 64)
    quants = records[..., :size].reshape(len(records), k // 32, 8, -1, 4)
    if kind == "INT4":
        quants = np.concatenate([quants & 15, quants >> 4], axis=3)
    factors = [
        records[..., at : at + 64].copy().view(np.float16).transpose(0, 2, 1).reshape(-1, k // 32, 1)
        for at in range(size, size + planes * 64, 64)
    ]
    scales, minima = (factor.astype(np.float32) for factor in (factors[0], factors[-1] * np.float16(planes - 1)))
    return quants.transpose(0, 3, 1, 2, 4).reshape(-1, k // 32, 32).astype(np.float32), scales, minima
