"""Log-probabilities under the model's own distribution: of given tokens, their ranks, and of the most probable tokens.

    scan    (row, chunk)   the chunk's largest logit, its sum of exponentials, how many logits beat the token's
    score   (row)          the chunks' sums in their order; the token's log-probability and rank
    top     (row, chunk)   the chunk's most probable tokens
    merge   (row)          the row's, of those

A row that is not finite gives NaN everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_kernels.triton.launch import launch
from octavo_kernels.triton.sampling_kernels import order_of

PASS = 32
"""Alternatives that one pass over a row finds; more take more passes."""


class LogprobsTuning(NamedTuple):
    """Logits of one program's chunk, a power of 2, and its warps."""

    chunk: int = 4096
    num_warps: int = 8


class Logprobs(NamedTuple):
    """What is found of R rows: n alternatives each, the most probable first, of equal ones the lowest id."""

    logprobs: Tensor  # float32 [R]
    ranks: Tensor  # int32 [R]: 1 and the number of tokens with a larger logit
    ids: Tensor  # int32 [R, n]
    values: Tensor  # float32 [R, n], their log-probabilities


class LogprobsWorkspace(NamedTuple):
    """What the launches hand on. Allocate it once, for the most rows and the vocabulary."""

    maxima: Tensor  # float32 [R, chunks]
    sums: Tensor  # float32 [R, chunks]
    larger: Tensor  # int32 [R, chunks]
    largest: Tensor  # float32 [R]
    log_sums: Tensor  # float32 [R]
    found: Tensor  # int64 [R, chunks, PASS]
    last: Tensor  # int64 [R], the last place in the order that a pass has found


def logprobs_workspace(
    rows: int, vocab: int, device: torch.device, tuning: LogprobsTuning | None = None
) -> LogprobsWorkspace:
    """Return memory for up to that many rows."""
    chunks = triton.cdiv(vocab, (tuning or LogprobsTuning()).chunk)

    def make(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=device)

    return LogprobsWorkspace(
        maxima=make(torch.float32, chunks),
        sums=make(torch.float32, chunks),
        larger=make(torch.int32, chunks),
        largest=make(torch.float32),
        log_sums=make(torch.float32),
        found=make(torch.int64, chunks, PASS),
        last=make(torch.int64),
    )


@triton.jit(do_not_specialize_on_alignment=["tokens"])
def _scan(
    logits: tl.tensor, tokens: tl.tensor, maxima: tl.tensor, sums: tl.tensor, larger: tl.tensor, stride: tl.tensor,
    vocab: tl.tensor, chunks: tl.tensor, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = at < vocab
    values = tl.load(logits + row * stride + at, inside, 0.0)
    finite = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0) < 0x7F800000
    # A token that is none compares with nothing.
    token = tl.load(tokens + row)
    known = (token >= 0) & (token < vocab)
    own = tl.load(logits + row * stride + tl.where(known, token, 0))
    values = tl.where(inside & (tl.abs(values) < float("inf")), values, float("-inf"))
    largest = tl.where(finite, tl.max(values, 0), 0.0)
    place = row * chunks + chunk
    tl.store(maxima + place, largest)
    tl.store(sums + place, tl.where(finite, tl.sum(tl.exp(values - largest), 0), float("nan")))
    tl.store(larger + place, tl.sum((values > own).to(tl.int32), 0))


@triton.jit(do_not_specialize_on_alignment=["tokens", "logprobs", "ranks"])
def _score(
    logits: tl.tensor, tokens: tl.tensor, maxima: tl.tensor, sums: tl.tensor, larger: tl.tensor, largest: tl.tensor,
    log_sums: tl.tensor, last: tl.tensor, logprobs: tl.tensor, ranks: tl.tensor, stride: tl.tensor, vocab: tl.tensor,
    chunks: tl.tensor, CHUNKS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, CHUNKS)
    place = row * chunks + at
    of_chunks = tl.load(maxima + place, at < chunks, float("-inf"))
    most = tl.max(of_chunks, 0)
    log_sum = tl.log(tl.sum(tl.load(sums + place, at < chunks, 0.0) * tl.exp(of_chunks - most), 0))
    tl.store(largest + row, most)
    tl.store(log_sums + row, log_sum)
    tl.store(last + row, 0x7FFFFFFFFFFFFFFF)
    token = tl.load(tokens + row)
    known = (token >= 0) & (token < vocab)
    own = tl.load(logits + row * stride + tl.where(known, token, 0))
    tl.store(logprobs + row, tl.where(known, own - most - log_sum, float("nan")))
    tl.store(ranks + row, tl.where(known, 1 + tl.sum(tl.load(larger + place, at < chunks, 0), 0), 0))


@triton.jit(do_not_specialize=["number"])
def _top(
    logits: tl.tensor, last: tl.tensor, found: tl.tensor, stride: tl.tensor, vocab: tl.tensor, chunks: tl.tensor,
    number: tl.tensor, CHUNK: tl.constexpr, ID_BITS: tl.constexpr, PASS: tl.constexpr, NONE: tl.constexpr,
) -> None:  # fmt: skip
    """The chunk's first `number` after the last one found: a place in the order is unique, larger is earlier."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * stride + at, at < vocab, 0.0)
    places = (order_of(values).to(tl.int64) << ID_BITS) | ((1 << ID_BITS) - 1 - at)
    places = tl.where((at < vocab) & (places < tl.load(last + row)), places, NONE)
    for i in range(0, number):
        best = tl.max(places, 0)
        tl.store(found + (row * chunks + chunk) * PASS + i, best)
        places = tl.where(places == best, NONE, places)


@triton.jit(do_not_specialize=["number", "first", "count"])
def _merge(
    found: tl.tensor, last: tl.tensor, largest: tl.tensor, log_sums: tl.tensor, ids: tl.tensor, values: tl.tensor,
    chunks: tl.tensor, number: tl.tensor, first: tl.tensor, count: tl.tensor,
    CHUNKS: tl.constexpr, ID_BITS: tl.constexpr, PASS: tl.constexpr, NONE: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, CHUNKS * PASS)
    there = (at < chunks * PASS) & (at % PASS < number)
    places = tl.load(found + row * chunks * PASS + at, there, NONE)
    most, log_sum = tl.load(largest + row), tl.load(log_sums + row)
    best = tl.max(places, 0)
    for i in range(0, number):
        best = tl.max(places, 0)
        order = (best >> ID_BITS).to(tl.int32)
        logit = tl.where(order < 0, order ^ 0x7FFFFFFF, order).to(tl.float32, bitcast=True)
        finite = log_sum == log_sum
        token = ((1 << ID_BITS) - 1 - (best & ((1 << ID_BITS) - 1))).to(tl.int32)
        tl.store(ids + row * count + first + i, tl.where(finite, token, 0))
        tl.store(values + row * count + first + i, tl.where(finite, logit - most - log_sum, log_sum))
        places = tl.where(places == best, NONE, places)
    tl.store(last + row, best)


def logprobs(
    logits: Tensor, tokens: Tensor, out: Logprobs, space: LogprobsWorkspace, tuning: LogprobsTuning | None = None
) -> Logprobs:
    """Fill `out` from logits float32 [R, V] and tokens int32 [R], and return it.

    A token outside the vocabulary (of a row that failed) gets NaN and rank 0. `out` has n alternatives, n ≥ 0: more
    than PASS take more launches. Logits as the model gives them: before `adjust`, which changes them in place.
    """
    tuning = tuning or LogprobsTuning()
    _require(logits, tokens, out, space, tuning)
    rows, vocab = logits.shape
    chunks, stride = triton.cdiv(vocab, tuning.chunk), logits.stride(0)
    grid, of_chunks, id_bits = (rows, chunks), triton.next_power_of_2(chunks), vocab.bit_length()
    options = {"num_warps": tuning.num_warps, "enable_fp_fusion": False}
    launch(
        _scan, grid, logits, tokens, space.maxima, space.sums, space.larger, stride, vocab, chunks,
        CHUNK=tuning.chunk, **options,
    )  # fmt: skip
    launch(
        _score, (rows,), logits, tokens, space.maxima, space.sums, space.larger, space.largest, space.log_sums,
        space.last, out.logprobs, out.ranks, stride, vocab, chunks, CHUNKS=of_chunks, num_warps=1,
        enable_fp_fusion=False,
    )  # fmt: skip
    alternatives = out.ids.shape[1]
    order = {"ID_BITS": id_bits, "PASS": PASS, "NONE": -(2**63)}
    for first in range(0, alternatives, PASS):
        number = min(PASS, alternatives - first)
        launch(
            _top, grid, logits, space.last, space.found, stride, vocab, chunks, number, CHUNK=tuning.chunk,
            **order, **options,
        )  # fmt: skip
        launch(
            _merge, (rows,), space.found, space.last, space.largest, space.log_sums, out.ids, out.values, chunks,
            number, first, alternatives, CHUNKS=of_chunks, **order, **options,
        )  # fmt: skip
    return out


def _require(logits: Tensor, tokens: Tensor, out: Logprobs, space: LogprobsWorkspace, tuning: LogprobsTuning) -> None:
    rows, vocab = logits.shape
    if logits.dtype != torch.float32 or vocab == 0 or (logits.numel() > 1 and logits.stride(1) != 1):
        raise ValueError("Logits must be float32 [rows, vocabulary], each row dense.")
    if tokens.shape != (rows,) or out.logprobs.shape != (rows,) or out.ranks.shape != (rows,):
        raise ValueError(f"Tokens, their log-probabilities and ranks must be [{rows}], one for each row of logits.")
    if out.ids.shape != out.values.shape or out.ids.shape[0] != rows or not out.ids.shape[1] <= vocab:
        raise ValueError(f"Alternatives and their values must be [{rows}, n], n at most {vocab}.")
    if not (out.ids.is_contiguous() and out.values.is_contiguous()):
        raise ValueError("Alternatives and their values must be contiguous.")
    if space.maxima.shape[0] < rows or space.maxima.shape[1] != triton.cdiv(vocab, tuning.chunk):
        raise ValueError("The workspace is for other logits: make it for this vocabulary, these rows and this tuning.")
