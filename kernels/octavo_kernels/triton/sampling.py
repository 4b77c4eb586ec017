"""Sampling of a whole step without a sort: the tokens of the C++ sampler, bit for bit.

Tokens are ranked once: largest logit first, of equal ones the lowest id. Every filter keeps the beginning of that
ranking: top-k the first k, top-p the shortest one that holds the share p of what is left; min-p drops whose weight is
below that share of the largest. A weight is exp((logit - largest) · (1 / temperature)) in float32, each product and sum
rounded on its own, times 2^30 and cut to an integer: sums are exact in any order, so splitting a row over programs
changes nothing. The token is the first, in the order of ids, at which the cumulative weight exceeds uniform · total.

    scan    (row, chunk)   the chunk's largest logit, its lowest id, whether all is finite, maxima of the chunk's parts
    weigh   (row, chunk)   the chunk's weight
    limit   (row)          a logit that no token the filters keep is below, from the maxima and the weights
    gather  (row, chunk)   the tokens of at least that: the row's candidates, in any order
    choose  (row)          thresholds by bisection over the candidates' ranks, then the token by bisection over ids

The limit only spares work: candidates are a superset of what is kept. Where there are more than fit, choose reads the
whole row instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from octavo_kernels.triton.launch import launch
from octavo_kernels.triton.sampling_kernels import (
    choose_kernel,
    gather_kernel,
    limit_kernel,
    scan_kernel,
    weigh_kernel,
)

NOT_FINITE, NOTHING_ALLOWED = -1, -2

ROW_WORDS = 10
"""32-bit words that a row's settings take."""


class SamplingTuning(NamedTuple):
    """Logits of one program's chunk and of one part of it, candidates kept per row, those read at once; all powers
    of 2."""

    chunk: int = 4096
    part: int = 64
    candidates: int = 8192
    block: int = 4096
    num_warps: int = 8


class Draw(NamedTuple):
    """How one row's token is drawn. `position` is the index of the token, counted from the sequence's start."""

    seed: int = 0
    choice: int = 0
    position: int = 0
    greedy: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


class SamplingRows(NamedTuple):
    """A step's settings on the device, a value for each row: views of one buffer, so that one copy brings them all.

    Every word is int32 but top_p (float64), inverse_temperature and min_p (float32). top_k below 1: all.
    """

    top_p: Tensor
    seed_low: Tensor
    seed_high: Tensor
    choice: Tensor
    position: Tensor
    inverse_temperature: Tensor
    top_k: Tensor
    min_p: Tensor
    greedy: Tensor


class SamplingWorkspace(NamedTuple):
    """What the launches of one step hand on. Allocate it once, for the most rows and the vocabulary."""

    maxima: Tensor  # float32 [R, chunks]
    best: Tensor  # int32 [R, chunks], the lowest id of the maximum
    magnitudes: Tensor  # int32 [R, chunks], the largest |logit|, as bits
    parts: Tensor  # float32 [R, parts], the maxima of all parts
    weights: Tensor  # int64 [R, chunks]
    limits: Tensor  # float32 [R]
    counts: Tensor  # int32 [R], candidates found
    logits: Tensor  # float32 [R, candidates]
    ids: Tensor  # int32 [R, candidates]


def rows_in(buffer: Tensor) -> SamplingRows:
    """Return the settings in a buffer of int32 [ROW_WORDS, R] that `pack_rows` has filled."""
    if buffer.dtype != torch.int32 or buffer.ndim != 2 or buffer.shape[0] != ROW_WORDS or not buffer.is_contiguous():
        raise ValueError(f"The settings' buffer must be int32 [{ROW_WORDS}, rows], contiguous.")
    return SamplingRows(
        top_p=buffer[:2].view(-1).view(torch.float64),
        seed_low=buffer[2],
        seed_high=buffer[3],
        choice=buffer[4],
        position=buffer[5],
        inverse_temperature=buffer[6].view(torch.float32),
        top_k=buffer[7],
        min_p=buffer[8].view(torch.float32),
        greedy=buffer[9],
    )


def pack_rows(draws: Sequence[Draw], out: NDArray[np.int32]) -> None:
    """Fill the buffer, int32 [ROW_WORDS, R]. Rows beyond `draws` are greedy: what a captured step computes for nobody.

    Raises ValueError if the buffer has too few rows, or a row that is not greedy has a temperature that is not above 0.
    """
    if out.shape[0] != ROW_WORDS or out.shape[1] < len(draws) or not out.flags.c_contiguous:
        raise ValueError(f"The settings' buffer must be [{ROW_WORDS}, {len(draws)}] or wider, contiguous.")
    if any(not draw.greedy and not draw.temperature > 0 for draw in draws):
        raise ValueError("A temperature is above 0: mark the row greedy instead.")
    out[:] = 0
    out[9] = 1
    if not draws:
        return
    count = len(draws)
    seed, choice, position, greedy, temperature, top_k, top_p, min_p = zip(*draws, strict=True)
    out[:2].reshape(-1).view(np.float64)[:count] = top_p
    seeds = np.array([each & 0xFFFF_FFFF_FFFF_FFFF for each in seed], dtype=np.uint64)
    out[2:4, :count] = seeds.view(np.int32).reshape(count, 2).T
    out[4, :count] = np.array(choice, dtype=np.uint32).view(np.int32)
    out[5, :count] = np.array(position, dtype=np.uint32).view(np.int32)
    safe = np.where(greedy, 1.0, temperature).astype(np.float32)
    out[6, :count] = (np.float32(1) / safe).view(np.int32)
    out[7, :count] = [min(max(each, 0), 2**31 - 1) for each in top_k]
    out[8, :count] = np.array(min_p, dtype=np.float32).view(np.int32)
    out[9, :count] = greedy


def workspace(rows: int, vocab: int, device: torch.device, tuning: SamplingTuning | None = None) -> SamplingWorkspace:
    """Return memory for steps of up to that many rows."""
    tuning = tuning or SamplingTuning()
    chunks = triton.cdiv(vocab, tuning.chunk)

    def make(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=device)

    return SamplingWorkspace(
        maxima=make(torch.float32, chunks),
        best=make(torch.int32, chunks),
        magnitudes=make(torch.int32, chunks),
        parts=make(torch.float32, chunks * (tuning.chunk // tuning.part)),
        weights=make(torch.int64, chunks),
        limits=make(torch.float32),
        counts=make(torch.int32),
        logits=make(torch.float32, tuning.candidates),
        ids=make(torch.int32, tuning.candidates),
    )


def sample(
    logits: Tensor,
    rows: SamplingRows,
    out: Tensor,
    space: SamplingWorkspace,
    status: Tensor | None = None,
    *,
    draws: bool = True,
    filters: bool = True,
    tuning: SamplingTuning | None = None,
) -> Tensor:
    """Write each row's token to `out` int32 [R] and return it; NOT_FINITE or NOTHING_ALLOWED where there is none.

    logits: float32 [R, V], dense rows; rows and space: for at least R rows, space made with the same tuning. `status`:
    int32 [R], what `adjust` found of the logits before it changed them; without it the logits are as they came, and
    -infinity fails a row. With draws=False every row must be greedy, with filters=False none may have top_k or top_p:
    the launches for those are left out.
    """
    tuning = tuning or SamplingTuning()
    _require(logits, rows, out, space, status, tuning)
    count, vocab = logits.shape
    chunks, stride = triton.cdiv(vocab, tuning.chunk), logits.stride(0)
    grid, options = (count, chunks), {"num_warps": tuning.num_warps, "enable_fp_fusion": False}
    of_chunks = triton.next_power_of_2(chunks)
    num_parts = space.parts.shape[1]
    launch(
        scan_kernel, grid, logits, space.maxima, space.best, space.magnitudes, space.parts, space.counts, stride, vocab,
        chunks, CHUNK=tuning.chunk, PART=tuning.part, **options,
    )  # fmt: skip
    if draws:
        launch(
            weigh_kernel, grid, logits, space.maxima, space.weights, rows.inverse_temperature, rows.top_k, rows.top_p,
            rows.min_p, rows.greedy, stride, vocab, chunks, CHUNK=tuning.chunk, CHUNKS=of_chunks, **options,
        )  # fmt: skip
    if draws and filters:
        launch(
            limit_kernel, (count,), space.maxima, space.parts, space.weights, space.limits, rows.inverse_temperature,
            rows.top_k, rows.top_p, rows.greedy, vocab, chunks, num_parts, CHUNKS=of_chunks,
            PARTS=triton.next_power_of_2(num_parts), **options,
        )  # fmt: skip
        launch(
            gather_kernel, grid, logits, space.maxima, space.limits, space.counts, space.logits, space.ids,
            rows.inverse_temperature, stride, vocab, chunks, CHUNK=tuning.chunk, CHUNKS=of_chunks,
            CANDIDATES=tuning.candidates, **options,
        )  # fmt: skip
    launch(
        choose_kernel, (count,), logits, status, out, space.maxima, space.best, space.magnitudes, space.weights,
        space.limits, space.counts, space.logits, space.ids, *rows, stride, vocab, chunks, CHUNK=tuning.chunk,
        CHUNKS=of_chunks, CANDIDATES=tuning.candidates, BLOCK=tuning.block, ID_BITS=vocab.bit_length(), **options,
    )  # fmt: skip
    return out


def _require(
    logits: Tensor,
    rows: SamplingRows,
    out: Tensor,
    space: SamplingWorkspace,
    status: Tensor | None,
    tuning: SamplingTuning,
) -> None:
    count, vocab = logits.shape
    if logits.dtype != torch.float32 or vocab == 0 or (logits.numel() > 1 and logits.stride(1) != 1):
        raise ValueError("Logits must be float32 [rows, vocabulary], each row dense.")
    if any(each.shape[0] < count for each in rows):
        raise ValueError(f"There must be settings for each of the {count} rows of logits.")
    if out.shape != (count,) or out.dtype != torch.int32 or (status is not None and status.shape[0] < count):
        raise ValueError(f"Tokens and status are int32 [{count}], one for each row of logits.")
    chunks = triton.cdiv(vocab, tuning.chunk)
    sizes = (chunks, chunks * (tuning.chunk // tuning.part), tuning.candidates)
    if space.maxima.shape[0] < count or sizes != (space.maxima.shape[1], space.parts.shape[1], space.ids.shape[1]):
        raise ValueError("The workspace is for other logits: make it for this vocabulary, these rows and this tuning.")
