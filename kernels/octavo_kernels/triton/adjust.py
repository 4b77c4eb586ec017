"""What changes the logits before a token is drawn, in place: bias, penalties, allowed ids, grammar, min_tokens.

In that order, with the CPU's arithmetic: each product and sum rounded on its own. min_tokens yields to a grammar that
allows nothing but to end. Penalties look at a row of counts per penalised sequence, which stays on the device: the word
of a token is 0 while it is unseen, its lowest bit is set if it is in the prompt, the bits above say how often it is in
the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from octavo_kernels.triton.launch import launch

ADJUST_WORDS = 8

# Where a setting stands in its buffer must not decide which code runs: nothing is gained by its alignment.
_SETTINGS = (
    "status", "count_row", "repetition", "presence", "frequency", "allowed", "grammar", "generated", "min_tokens",
    "bias_offsets", "bias_ids", "bias", "held_offsets", "held_ids", "draft_offsets", "drafts",
)  # fmt: skip


class AdjustTuning(NamedTuple):
    """Logits of one program, and its warps."""

    chunk: int = 4096
    num_warps: int = 8


class Adjustment(NamedTuple):
    """What one row's logits get. Ids are inside the vocabulary, and none is listed twice.

    count_row: the row's counts, -1 without penalties. drafts: tokens drafted before this position, which are counted as
    output too: the row matters only if they are accepted. allowed, grammar: the rows of its bit masks, -1 for all.
    held_back: ids that must not come before `min_tokens`, of which `generated` are there.
    """

    bias_ids: Sequence[int] = ()
    bias: Sequence[float] = ()
    count_row: int = -1
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    drafts: Sequence[int] = ()
    allowed: int = -1
    grammar: int = -1
    generated: int = 0
    min_tokens: int = 0
    held_back: Sequence[int] = ()


class AdjustCapacity(NamedTuple):
    """Room in a step's buffer: rows, and over all of them biases, ids held back and drafts counted."""

    rows: int
    biases: int
    held_back: int
    drafts: int


class AdjustRows(NamedTuple):
    """A step's adjustments on the device: views of one buffer, so that one copy brings them all.

    A value for each row: int32, the penalties float32. The lists of all rows stand one after another, row r's from
    offsets[r] to offsets[r + 1].
    """

    count_row: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    allowed: Tensor
    grammar: Tensor
    generated: Tensor
    min_tokens: Tensor
    bias_offsets: Tensor
    bias_ids: Tensor
    bias: Tensor
    held_offsets: Tensor
    held_ids: Tensor
    draft_offsets: Tensor
    drafts: Tensor


def adjust_buffer_words(capacity: AdjustCapacity) -> int:
    """Return the length of the int32 buffer for steps of that capacity."""
    return sum(_sizes(capacity))


def _sizes(capacity: AdjustCapacity) -> list[int]:
    rows, biases, held_back, drafts = capacity
    return [rows] * ADJUST_WORDS + [rows + 1, biases, biases, rows + 1, held_back, rows + 1, drafts]


def adjust_rows_in(buffer: Tensor, capacity: AdjustCapacity) -> AdjustRows:
    """Return the adjustments in an int32 buffer that `pack_adjustments` has filled for the same capacity."""
    sizes = _sizes(capacity)
    if buffer.dtype != torch.int32 or buffer.shape != (sum(sizes),):
        raise ValueError(f"The adjustments' buffer must be int32 [{sum(sizes)}].")
    parts = dict(zip(AdjustRows._fields, torch.split(buffer, sizes), strict=True))
    floats = {name: parts[name].view(torch.float32) for name in ("repetition", "presence", "frequency", "bias")}
    return AdjustRows(**(parts | floats))


def pack_adjustments(adjustments: Sequence[Adjustment], buffer: NDArray[np.int32], capacity: AdjustCapacity) -> None:
    """Fill the buffer. Rows beyond `adjustments` get none. Raises ValueError if more is listed than there is room."""
    lists = {
        "bias": [row.bias_ids for row in adjustments],
        "held": [row.held_back for row in adjustments],
        "draft": [row.drafts for row in adjustments],
    }
    needed = AdjustCapacity(len(adjustments), *(sum(map(len, each)) for each in lists.values()))
    if any(need > room for need, room in zip(needed, capacity, strict=True)):
        raise ValueError(f"{needed} does not fit a buffer for {capacity}: make a larger one.")
    parts = dict(zip(AdjustRows._fields, np.split(buffer, np.cumsum(_sizes(capacity))[:-1]), strict=True))
    for name in ("count_row", "allowed", "grammar", "generated", "min_tokens"):
        parts[name][:] = -1 if name in ("count_row", "allowed", "grammar") else 0
        parts[name][: len(adjustments)] = [getattr(row, name) for row in adjustments]
    for name in ("repetition", "presence", "frequency"):
        parts[name].view(np.float32)[: len(adjustments)] = [getattr(row, name) for row in adjustments]
    parts["bias"].view(np.float32)[: needed.biases] = [each for row in adjustments for each in row.bias]
    for name, ids in (("bias", "bias_ids"), ("held", "held_ids"), ("draft", "drafts")):
        offsets = np.cumsum([0, *map(len, lists[name])])
        parts[f"{name}_offsets"][:] = offsets[-1]
        parts[f"{name}_offsets"][: len(offsets)] = offsets
        parts[ids][: offsets[-1]] = [each for row in lists[name] for each in row]


@triton.jit
def _allowed_by(masks: tl.tensor, mask: tl.tensor, at: tl.tensor, words: tl.tensor) -> tl.tensor:
    """Return whether the mask's bits allow the ids; what is beyond its words is forbidden."""
    word = tl.load(masks + mask.to(tl.int64) * words + at // 32, at // 32 < words, 0)
    return ((word >> (at % 32)) & 1) != 0


@triton.jit(do_not_specialize_on_alignment=_SETTINGS)
def _adjust(
    logits: tl.tensor, status: tl.tensor, counts: tl.tensor, allowed_masks: tl.tensor, grammar_masks: tl.tensor,
    count_row: tl.tensor, repetition: tl.tensor, presence: tl.tensor, frequency: tl.tensor, allowed: tl.tensor,
    grammar: tl.tensor, generated: tl.tensor, min_tokens: tl.tensor, bias_offsets: tl.tensor, bias_ids: tl.tensor,
    bias: tl.tensor, held_offsets: tl.tensor, held_ids: tl.tensor, draft_offsets: tl.tensor, drafts: tl.tensor,
    stride: tl.tensor, vocab: tl.tensor, counts_stride: tl.tensor, allowed_words: tl.tensor, grammar_words: tl.tensor,
    CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """status: its sign bit says that the logits were not finite, bit 0 that a grammar leaves more than what is held."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = at < vocab
    values = tl.load(logits + row * stride + at, inside, 0.0)
    if tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0) >= 0x7F800000:
        tl.atomic_or(status + row, -0x80000000)

    for i in range(tl.load(bias_offsets + row), tl.load(bias_offsets + row + 1)):
        values = tl.where(at == tl.load(bias_ids + i), values + tl.load(bias + i), values)
    if counts is not None:
        own = tl.load(count_row + row)
        if own >= 0:
            seen = tl.load(counts + own.to(tl.int64) * counts_stride + at, inside, 0)
            for i in range(tl.load(draft_offsets + row), tl.load(draft_offsets + row + 1)):
                seen += tl.where(at == tl.load(drafts + i), 2, 0)
            times = seen >> 1
            repeats = tl.load(repetition + row)
            repeated = tl.where(values > 0, tl.div_rn(values, repeats), values * repeats)
            values = tl.where(seen != 0, repeated, values)
            used = values - tl.load(frequency + row) * times.to(tl.float32) - tl.load(presence + row)
            values = tl.where(times > 0, used, values)
    if allowed_masks is not None:
        mask = tl.load(allowed + row)
        if mask >= 0:
            values = tl.where(_allowed_by(allowed_masks, mask, at, allowed_words), values, float("-inf"))
    if grammar_masks is not None:
        mask = tl.load(grammar + row)
        if mask >= 0:
            values = tl.where(_allowed_by(grammar_masks, mask, at, grammar_words), values, float("-inf"))
            if tl.load(generated + row) < tl.load(min_tokens + row):
                left = tl.where(inside, values, float("-inf"))
                for i in range(tl.load(held_offsets + row), tl.load(held_offsets + row + 1)):
                    left = tl.where(at == tl.load(held_ids + i), float("-inf"), left)
                if tl.max(left, 0) > float("-inf"):
                    tl.atomic_or(status + row, 1)
    tl.store(logits + row * stride + at, values, inside)


@triton.jit(do_not_specialize_on_alignment=_SETTINGS)
def _hold_back(
    logits: tl.tensor, status: tl.tensor, grammar: tl.tensor, generated: tl.tensor, min_tokens: tl.tensor,
    held_offsets: tl.tensor, held_ids: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(held_offsets + row), tl.load(held_offsets + row + 1)
    free = (tl.load(grammar + row) < 0) | ((tl.load(status + row) & 1) != 0)
    if (tl.load(generated + row) < tl.load(min_tokens + row)) & free:
        for first in range(begin, end, BLOCK):
            at = first + tl.arange(0, BLOCK)
            ids = tl.load(held_ids + at, at < end, 0)
            tl.store(logits + row * stride + ids, float("-inf"), at < end)


@triton.jit(do_not_specialize=["row", "num_tokens", "num_prompt_tokens"], do_not_specialize_on_alignment=["tokens"])
def _count_tokens(
    counts: tl.tensor, tokens: tl.tensor, counts_stride: tl.tensor, vocab: tl.tensor, row: tl.tensor,
    num_tokens: tl.tensor, num_prompt_tokens: tl.tensor, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + at, at < num_tokens, -1)
    known = (token >= 0) & (token < vocab)
    word = counts + row.to(tl.int64) * counts_stride + token
    tl.atomic_or(word, 1, known & (at < num_prompt_tokens))
    tl.atomic_add(word, 2, known & (at >= num_prompt_tokens))


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["count_rows", "tokens"])
def _count_sampled(
    counts: tl.tensor, count_rows: tl.tensor, tokens: tl.tensor, counts_stride: tl.tensor, num_rows: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(count_rows + at, at < num_rows, -1)
    token = tl.load(tokens + at, at < num_rows, -1)
    tl.atomic_add(counts + row.to(tl.int64) * counts_stride + token, 2, (row >= 0) & (token >= 0))


def adjust(
    logits: Tensor,
    rows: AdjustRows,
    status: Tensor,
    *,
    counts: Tensor | None = None,
    allowed_masks: Tensor | None = None,
    grammar_masks: Tensor | None = None,
    tuning: AdjustTuning | None = None,
) -> None:
    """Change logits float32 [R, V] in place as `rows` say; give `status` int32 [R] to `sample` afterwards.

    counts: int32 [C, V], as `count_tokens` fills them; allowed_masks, grammar_masks: int32 [M, words], bits of the ids
    allowed, the lowest first. What no row of the step refers to may be left out, or given all the same: every row says
    what it uses. A row whose logits are not finite is marked in `status` before anything is changed.
    """
    tuning = tuning or AdjustTuning()
    _require(logits, rows, status, counts, allowed_masks, grammar_masks)
    count, vocab = logits.shape
    stride = logits.stride(0)
    status.zero_()
    launch(
        _adjust, (count, triton.cdiv(vocab, tuning.chunk)), logits, status, counts, allowed_masks, grammar_masks, *rows,
        stride, vocab, 0 if counts is None else counts.stride(0),
        0 if allowed_masks is None else allowed_masks.shape[1], 0 if grammar_masks is None else grammar_masks.shape[1],
        CHUNK=tuning.chunk, num_warps=tuning.num_warps, enable_fp_fusion=False,
    )  # fmt: skip
    launch(
        _hold_back, (count,), logits, status, rows.grammar, rows.generated, rows.min_tokens, rows.held_offsets,
        rows.held_ids, stride, BLOCK=32, num_warps=1,
    )  # fmt: skip


def count_tokens(counts: Tensor, row: int, tokens: Tensor, num_prompt_tokens: int) -> None:
    """Fill row `row` of counts int32 [C, V] from a sequence's tokens int32 [n], prompt first. For its admission."""
    _require_counts(counts)
    if not 0 <= row < counts.shape[0]:
        raise ValueError(f"There are {counts.shape[0]} rows of counts, so none is {row}: allocate more.")
    counts[row].zero_()
    launch(
        _count_tokens, (triton.cdiv(tokens.shape[0], 256),), counts, tokens, counts.stride(0), counts.shape[1], row,
        tokens.shape[0], num_prompt_tokens, BLOCK=256, num_warps=2,
    )  # fmt: skip


def count_sampled(counts: Tensor, count_rows: Tensor, tokens: Tensor) -> None:
    """Count a step's tokens int32 [R] in their rows of counts, int32 [R]; nothing where either is negative."""
    _require_counts(counts)
    if tokens.shape[0] > count_rows.shape[0]:
        raise ValueError(f"There must be a row of counts, or -1, for each of the {tokens.shape[0]} tokens.")
    launch(
        _count_sampled, (triton.cdiv(tokens.shape[0], 64),), counts, count_rows, tokens, counts.stride(0),
        tokens.shape[0], BLOCK=64, num_warps=1,
    )  # fmt: skip


def _require_counts(counts: Tensor) -> None:
    if counts.dtype != torch.int32 or counts.ndim != 2 or not counts.is_contiguous():
        raise ValueError("Counts must be int32 [rows, vocabulary], contiguous.")


def _require(
    logits: Tensor,
    rows: AdjustRows,
    status: Tensor,
    counts: Tensor | None,
    allowed_masks: Tensor | None,
    grammar_masks: Tensor | None,
) -> None:
    count, vocab = logits.shape
    if logits.dtype != torch.float32 or (logits.numel() > 1 and logits.stride(1) != 1):
        raise ValueError("Logits must be float32 [rows, vocabulary], each row dense.")
    if rows.count_row.shape[0] < count or status.shape != (count,) or status.dtype != torch.int32:
        raise ValueError(f"There must be adjustments and an int32 status for each of the {count} rows of logits.")
    if counts is not None:
        _require_counts(counts)
        if counts.shape[1] != vocab:
            raise ValueError(f"The counts are for {counts.shape[1]} tokens, the logits for {vocab}: they must agree.")
    for masks in (allowed_masks, grammar_masks):
        if masks is not None and (masks.dtype != torch.int32 or masks.ndim != 2 or not masks.is_contiguous()):
            raise ValueError("Masks must be int32 [masks, words], contiguous.")
