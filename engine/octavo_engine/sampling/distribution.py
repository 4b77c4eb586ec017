"""From one row of logits to one token: temperature, top-k, top-p, min-p, inverse CDF.

The arithmetic is fixed, so that a row gives the same token whatever runs beside it and whoever computes it:
weights are float32 exp((logit - max) / temperature); sums are float64 over partitions of 256 token ids counted from id
0, the partitions' sums are added in order. A draw walks the CDF in token-id order: first the partition, then inside it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo_engine.sampling.settings import SamplingSettings

PARTITION = 256


def draw(logits: NDArray[np.float32], settings: SamplingSettings, uniform: float) -> int:
    """Return the token that `uniform` in [0, 1) picks. logits: [V], -inf for what is not allowed, max finite."""
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((logits - logits.max()) / np.float32(settings.temperature))
    if 0 < settings.top_k < weights.size:
        weights = keep_top_k(weights, settings.top_k)
    if settings.top_p < 1:
        weights = keep_top_p(weights, settings.top_p)
    if settings.min_p > 0:
        weights = keep_min_p(weights, settings.min_p)
    return inverse_cdf(weights, uniform)


def keep_top_k(weights: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    """Zero all but the k largest weights; of equal ones the lowest ids stay, so k = 1 is greedy."""
    return _keep_largest(weights, k, np.partition(weights, weights.size - k)[weights.size - k])


def keep_top_p(weights: NDArray[np.float32], p: float) -> NDArray[np.float32]:
    """Zero all but the smallest set of largest weights that holds at least the share p; the largest always stays."""
    # Values alone are sorted, not ids: several times faster, and only the smallest value kept is needed.
    descending = np.sort(weights)[::-1]
    held = np.cumsum(descending, dtype=np.float64)
    count = int(np.searchsorted(held, p * held[-1], side="left")) + 1
    return _keep_largest(weights, count, descending[count - 1])


def _keep_largest(weights: NDArray[np.float32], count: int, smallest: np.float32) -> NDArray[np.float32]:
    """Zero all but the `count` largest, the last of which is `smallest`; of equal ones the lowest ids stay."""
    keep = weights > smallest
    ties = np.flatnonzero(weights == smallest)
    keep[ties[: count - int(np.count_nonzero(keep))]] = True
    return np.where(keep, weights, np.float32(0))


def keep_min_p(weights: NDArray[np.float32], min_p: float) -> NDArray[np.float32]:
    """Zero the weights below the share `min_p` of the largest."""
    return np.where(weights >= np.float32(min_p) * weights.max(), weights, np.float32(0))


def inverse_cdf(weights: NDArray[np.float32], uniform: float) -> int:
    """Return the first id whose cumulative weight exceeds `uniform` of the total. Never an id of weight 0."""
    ends = _partition_ends(weights)
    target = uniform * ends[-1]
    part = min(int(np.searchsorted(ends, target, side="right")), int(np.searchsorted(ends, ends[-1], side="left")))
    inside = np.cumsum(weights[part * PARTITION : (part + 1) * PARTITION], dtype=np.float64)
    rest = target - (ends[part - 1] if part else 0.0)
    # The partition's sum and its running sum may differ in the last bit: stay on its last id with any weight.
    last = int(np.searchsorted(inside, inside[-1], side="left"))
    return part * PARTITION + min(int(np.searchsorted(inside, rest, side="right")), last)


def _partition_ends(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the cumulative weight at the end of each partition, the last one filled up with zeros."""
    padded = np.zeros(-(-weights.size // PARTITION) * PARTITION, dtype=np.float64)
    padded[: weights.size] = weights
    return np.cumsum(padded.reshape(-1, PARTITION).sum(axis=1))
