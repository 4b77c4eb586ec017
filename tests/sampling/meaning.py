"""What sampling means, in numpy and a full sort: the definition that the kernel is held to, token for token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

ONE = 1 << 30


def weights(logits: NDArray[np.float32], temperature: float = 1.0) -> NDArray[np.float32]:
    """Return exp((logits - largest) / temperature), each operation rounded to float32 on its own."""
    f = np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        x = (logits - logits.max()) * (f(1) / f(temperature))
    x = np.fmax(x, f(-30))
    n = np.rint(x * f(1.44269504))
    r = (x - n * f(0.693359375)) + n * f(2.12194440e-4)
    p = np.full_like(r, f(1.9875691500e-4))
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + f(c)
    p = ((r * r) * p + r) + f(1)
    return p * ((n.astype(np.int32) + 127) << 23).view(np.float32)


def kept(logits: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float) -> NDArray[np.int64]:
    """Return the integer weights that the filters leave, 0 elsewhere."""
    floats = weights(logits, temperature)
    integers = (floats * np.float32(ONE)).astype(np.int64)
    ranking = np.argsort(-logits, kind="stable")
    ranked = integers[ranking]
    if 0 < top_k < logits.size:
        ranked[top_k:] = 0
    if top_p < 1:
        held = np.cumsum(ranked)
        ranked[np.searchsorted(held, max(1, math.ceil(top_p * float(held[-1])))) + 1 :] = 0
    result = np.zeros_like(integers)
    result[ranking] = ranked
    result[floats < np.float32(min_p)] = 0
    return result


def adjust(
    logits: NDArray[np.float32],
    prompt: Sequence[int],
    output: Sequence[int],
    presence_penalty: float,
    frequency_penalty: float,
    repetition_penalty: float,
    min_tokens: int,
    logit_bias: Mapping[int, float],
    allowed_token_ids: Sequence[int],
    held_back_ids: Sequence[int],
    grammar: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """Return the logits with bias, penalties, allowed ids, grammar and min_tokens applied, in that order."""
    f, result = np.float32, logits.copy()
    for token, bias in logit_bias.items():
        result[token] += f(bias)
    for token in {*prompt, *output} if repetition_penalty != 1 else ():
        value = result[token]
        result[token] = value / f(repetition_penalty) if value > 0 else value * f(repetition_penalty)
    for token in set(output):
        result[token] -= f(frequency_penalty) * f(list(output).count(token))
        result[token] -= f(presence_penalty)
    if allowed_token_ids:
        result[np.setdiff1d(np.arange(logits.size), allowed_token_ids)] = -np.inf
    if grammar is not None:
        result[np.setdiff1d(np.arange(logits.size), grammar)] = -np.inf
    if len(output) < min_tokens:
        before = result.copy()
        result[list(held_back_ids)] = -np.inf
        if grammar is not None and result.max() == -np.inf:
            return before
    return result


def token_of(
    logits: NDArray[np.float32],
    *,
    seed: int = 0,
    choice: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    min_tokens: int = 0,
    logit_bias: Mapping[int, float] | None = None,
    allowed_token_ids: Sequence[int] = (),
    held_back_ids: Sequence[int] = (),
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    grammar: Sequence[int] | None = None,
) -> int:
    """Return the token after `prompt` and `output`; -1 if logits [V] are not finite, -2 if nothing is allowed."""
    if not np.isfinite(logits).all():
        return -1
    changed = adjust(
        logits, prompt, output, presence_penalty, frequency_penalty, repetition_penalty, min_tokens, logit_bias or {},
        allowed_token_ids, held_back_ids, grammar,
    )  # fmt: skip
    if changed.max() == -np.inf:
        return -2
    if temperature <= 1e-5:
        return int(changed.argmax())
    left = kept(changed, temperature, top_k, top_p, min_p)
    target = int(uniform(seed, choice, len(prompt) + len(output)) * float(left.sum()))
    return int(np.searchsorted(np.cumsum(left), target, side="right"))


def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the Philox4x32-10 block (Salmon et al., SC 2011) of a counter of 4 words and a key of 2."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = x0 * 0xD2511F53, x2 * 0xCD9E8D57
        x0, x1, x2, x3 = (right >> 32) ^ x1 ^ k0, right & 0xFFFFFFFF, (left >> 32) ^ x3 ^ k1, left & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return x0, x1, x2, x3


def uniform(seed: int, choice: int, position: int) -> float:
    """Return 53 random bits as a number in [0, 1)."""
    words = seed & 0xFFFF_FFFF_FFFF_FFFF
    block = philox((position, choice, 0, 0), (words & 0xFFFFFFFF, words >> 32))
    return ((block[0] << 21) ^ (block[1] >> 11)) * 2.0**-53


def masks_of(grammars: Sequence[Sequence[int] | None], vocab: int) -> tuple[list[int], NDArray[np.int32] | None]:
    """Return each row's first mask (-1: none), and the masks, of rows that may have a list of the ids allowed."""
    listed = [ids for ids in grammars if ids is not None]
    if not listed:
        return [-1] * len(grammars), None
    bits = np.zeros((len(listed), -(-vocab // 32) * 32), dtype=np.uint8)
    for mask, ids in zip(bits, listed, strict=True):
        mask[list(ids)] = 1
    places = iter(range(len(listed)))
    first = [-1 if ids is None else next(places) for ids in grammars]
    return first, np.packbits(bits, axis=1, bitorder="little").view(np.int32)
