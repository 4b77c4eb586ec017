"""The uniform that decides a token: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1,
2, 3", SC 2011), counter (position, choice, 0, 0) and key seed. It has no state, so it survives preemption."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def philox(x0: tl.tensor, x1: tl.tensor, x2: tl.tensor, x3: tl.tensor, k0: tl.tensor, k1: tl.tensor) -> tl.tensor:
    """Return the 4 words of a block; counter and key are uint32."""
    for _ in tl.static_range(10):
        left_high, left_low = tl.umulhi(x0, 0xD2511F53), x0 * 0xD2511F53
        right_high, right_low = tl.umulhi(x2, 0xCD9E8D57), x2 * 0xCD9E8D57
        x0, x1, x2, x3 = right_high ^ x1 ^ k0, right_low, left_high ^ x3 ^ k1, left_low
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return x0, x1, x2, x3


@triton.jit
def uniform(seed_low: tl.tensor, seed_high: tl.tensor, choice: tl.tensor, position: tl.tensor) -> tl.tensor:
    """Return 53 random bits as a float64 in [0, 1). The arguments are int32, bits of unsigned words."""
    x0, x1 = position.to(tl.uint32, bitcast=True), choice.to(tl.uint32, bitcast=True)
    zero = x0 ^ x0
    key_low, key_high = seed_low.to(tl.uint32, bitcast=True), seed_high.to(tl.uint32, bitcast=True)
    first, second, _, _ = philox(x0, x1, zero, zero, key_low, key_high)
    bits = (first.to(tl.int64) << 21) ^ (second.to(tl.int64) >> 11)
    return bits.to(tl.float64) * 1.1102230246251565e-16  # 2^-53
