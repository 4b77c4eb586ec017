"""Sampling, what changes logits before it, and log-probabilities, against their definitions in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from benchmarks.on_gpu.checks_case import BOUNDS, Case, difference, values
from benchmarks.on_gpu.machine import Bench
from numpy.typing import NDArray

from octavo_kernels.triton.adjust import (
    AdjustCapacity,
    Adjustment,
    adjust,
    adjust_buffer_words,
    adjust_rows_in,
    count_sampled,
    count_tokens,
    pack_adjustments,
)
from octavo_kernels.triton.logprobs import Logprobs, logprobs, logprobs_workspace
from octavo_kernels.triton.sampling import ROW_WORDS, Draw, pack_rows, rows_in, sample, workspace

DRAWS = (
    Draw(greedy=True),
    Draw(seed=1, position=5),
    Draw(seed=2**63 + 7, choice=2, position=1000, temperature=0.6),
    Draw(seed=3, position=17, top_k=40),
    Draw(seed=4, position=2, temperature=0.8, top_p=0.95),
    Draw(seed=5, position=3, min_p=0.02),
    Draw(seed=6, position=9, temperature=1.3, top_k=100, top_p=0.8, min_p=0.01),
)
SLACK = 1e-5
"""Of the total weight: how near to a border a uniform may lie where float32's rounding may decide."""


def sampling_cases(bench: Bench) -> Iterator[Case]:
    """Yield the comparisons, at the largest vocabulary of the models."""
    vocab = bench.pick(151936, 300)
    for repeat in range(bench.pick(4, 1)):
        yield Case("sample", f"every filter, draw {repeat}", 0.0, lambda r=repeat: _sample(bench, vocab, r))
    yield Case(
        "adjust, count_tokens, count_sampled", "all at once", BOUNDS[torch.float32], lambda: _adjust(bench, vocab)
    )
    yield Case("logprobs", "ranks and 20 alternatives", BOUNDS[torch.float32], lambda: _logprobs(bench, vocab))


def _sample(bench: Bench, vocab: int, repeat: int) -> float:
    """Return how many rows drew a token that the definition does not give."""
    draws = [draw._replace(position=draw.position + 31 * repeat) for draw in DRAWS]
    logits = values(bench, len(draws), vocab, dtype=torch.float32, seed=repeat) * 3
    tuning = bench.configurations.sampling()
    packed = np.empty((ROW_WORDS, 8), dtype=np.int32)
    pack_rows(draws, packed)
    out = torch.empty(len(draws), dtype=torch.int32, device=bench.device)
    space = workspace(8, vocab, bench.device, tuning)
    sample(logits, rows_in(torch.from_numpy(packed).to(bench.device)), out, space, tuning=tuning)
    host = logits.double().cpu().numpy()
    wrong = [not drawn(row, draw, token) for row, draw, token in zip(host, draws, out.tolist(), strict=True)]
    return float(sum(wrong))


def drawn(logits: NDArray[np.float64], draw: Draw, token: int) -> bool:
    """Return whether `token` is what the definition draws: the first at which the cumulative weight exceeds."""
    if draw.greedy:
        return token == int(logits.argmax())
    weights = np.exp((logits - logits.max()) / draw.temperature)
    order = np.argsort(-logits, kind="stable")
    kept = np.ones(len(weights), dtype=bool)
    if draw.top_k > 0:
        kept[order[draw.top_k :]] = False
    left = np.where(kept, weights, 0.0)
    if draw.top_p < 1:
        cumulated = np.cumsum(left[order])
        kept[order[1:][cumulated[:-1] >= draw.top_p * cumulated[-1]]] = False
    kept &= weights >= draw.min_p * weights.max()
    cumulated = np.cumsum(np.where(kept, weights, 0.0))
    share = uniform(draw.seed, draw.choice, draw.position)
    before = cumulated[token - 1] if token else 0.0
    within = before / cumulated[-1] - SLACK <= share <= cumulated[token] / cumulated[-1] + SLACK
    return bool(0 <= token < len(logits) and kept[token] and within)


def uniform(seed: int, choice: int, position: int) -> float:
    """Return Philox4x32-10's 53 bits (Salmon et al., 2011) of counter (position, choice, 0, 0) and key seed."""
    word = 0xFFFFFFFF
    x0, x1, x2, x3, k0, k1 = position, choice, 0, 0, seed & word, seed >> 32 & word
    for _ in range(10):
        left, right = x0 * 0xD2511F53, x2 * 0xCD9E8D57
        x0, x1, x2, x3 = right >> 32 ^ x1 ^ k0, right & word, left >> 32 ^ x3 ^ k1, left & word
        k0, k1 = k0 + 0x9E3779B9 & word, k1 + 0xBB67AE85 & word
    return float((x0 << 21) ^ (x1 >> 11)) * 2.0**-53


def _adjust(bench: Bench, vocab: int) -> float:
    logits = values(bench, 3, vocab, dtype=torch.float32)
    wanted = logits.double().cpu()
    counts = torch.zeros(2, vocab, dtype=torch.int32, device=bench.device)
    tokens = torch.tensor([5, 9, 5, 70, 9, 9], dtype=torch.int32, device=bench.device)
    count_tokens(counts, 1, tokens, 2)
    count_sampled(counts, tokens.new_tensor([1, -1]), tokens.new_tensor([70, 5]))
    words = -(-vocab // 32)
    masks = torch.zeros((1, words), dtype=torch.int32, device=bench.device)
    masks[0, 0] = 0xFF
    rows = [
        Adjustment(bias_ids=[3, 200], bias=[2.5, -4.0]),
        Adjustment(count_row=1, repetition=1.3, presence=0.5, frequency=0.25),
        Adjustment(grammar=0, generated=1, min_tokens=3, held_back=[2, 7]),
    ]
    capacity = AdjustCapacity(4, 64, 64, 64)
    buffer = np.zeros(adjust_buffer_words(capacity), dtype=np.int32)
    pack_adjustments(rows, buffer, capacity)
    status = torch.empty(3, dtype=torch.int32, device=bench.device)
    brought = adjust_rows_in(torch.from_numpy(buffer).to(bench.device), capacity)
    adjust(logits, brought, status, counts=counts, grammar_masks=masks)
    wanted[0, 3] += 2.5
    wanted[0, 200] -= 4.0
    for token, times in ((5, 1), (9, 2), (70, 2)):
        value = wanted[1, token]
        wanted[1, token] = (value / 1.3 if value > 0 else value * 1.3) - 0.25 * times - 0.5
    keep = [token for token in range(8) if token not in (2, 7)]
    forbidden = torch.ones(vocab, dtype=torch.bool)
    forbidden[keep] = False
    if not bool(torch.isneginf(logits[2].cpu()[forbidden]).all()):
        return float("inf")
    return max(difference(logits[:2], wanted[:2]), difference(logits[2, keep], wanted[2, keep]))


def _logprobs(bench: Bench, vocab: int) -> float:
    logits = values(bench, 5, vocab, dtype=torch.float32) * 4
    tokens = torch.tensor([0, vocab - 1, 7, 100, 33], dtype=torch.int32, device=bench.device)
    out = Logprobs(
        logits.new_empty(5), tokens.new_empty(5), tokens.new_empty(5, 20), logits.new_empty(5, 20)
    )  # fmt: skip
    logprobs(logits, tokens, out, logprobs_workspace(5, vocab, bench.device))
    exact = torch.log_softmax(logits.double().cpu(), dim=-1)
    own = exact.gather(1, tokens.cpu().long()[:, None])
    best, places = exact.topk(20, dim=-1)
    ranks = 1 + (exact > own).sum(-1)
    if not torch.equal(out.ranks.cpu().long(), ranks) or not torch.equal(out.ids.cpu().long(), places):
        return float("inf")
    return max(difference(out.logprobs, own[:, 0]), difference(out.values, best))
