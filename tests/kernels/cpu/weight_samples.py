"""Random weights in the formats of files, with what they mean in floats."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

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
    return "F32", kind, weights, quantise_weights(kind, weights)


def quantise_weights(kind: str, weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what --quantization makes of weights: groups of 32 with float16 scales (and minima, for INT4)."""
    groups = weights.reshape(len(weights), -1, 32)
    if kind == "INT8":
        scale = (np.abs(groups).max(-1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
        return (np.clip(np.rint(groups / scale), -128, 127) * scale).reshape(weights.shape)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    scale = ((high - low) / np.float32(15)).astype(np.float16).astype(np.float32)
    low = low.astype(np.float16).astype(np.float32)
    return (np.clip(np.rint((groups - low) / scale), 0, 15) * scale + low).reshape(weights.shape)
