"""Philox4x32-10: one uniform per (seed, choice, position), whatever else runs.

A counter-based generator has no state to carry: a draw is a function of its key and its counter, so it survives
preemption, does not depend on batch neighbours, and is the same on every backend. Source: Salmon, Moraes, Dror, Shaw,
"Parallel random numbers: as easy as 1, 2, 3" (SC 2011), sections 3.2 and 4.3, with the constants of its table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox4x32(counters: NDArray[np.uint32], keys: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the 10-round Philox block of each counter. counters: [N, 4], keys: [N, 2], result: [N, 4]."""
    x0, x1, x2, x3 = (counters[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = (keys[:, i].astype(np.uint64) for i in range(2))
    for _ in range(ROUNDS):
        left, right = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1, x2, x3 = (right >> _SHIFT) ^ x1 ^ k0, right & _LOW, (left >> _SHIFT) ^ x3 ^ k1, left & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([x0, x1, x2, x3], axis=1).astype(np.uint32)


def uniforms(seeds: Sequence[int], choices: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """Return one uniform in [0, 1) for each (seed, choice, position), 53 random bits each.

    Key: the seed's low 64 bits. Counter: (position, choice, 0, 0); words 0 and 1 of the block give the bits.
    """
    count = len(seeds)
    counters = np.zeros((count, 4), dtype=np.uint32)
    counters[:, 0], counters[:, 1] = positions, choices
    words = np.array([seed & 0xFFFF_FFFF_FFFF_FFFF for seed in seeds], dtype=np.uint64)
    block = philox4x32(counters, np.stack([words & _LOW, words >> _SHIFT], axis=1).astype(np.uint32))
    bits = (block[:, 0].astype(np.uint64) << np.uint64(21)) ^ (block[:, 1].astype(np.uint64) >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53
