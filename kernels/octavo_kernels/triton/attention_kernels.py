"""The attention kernels: `attend` goes through keys with a tile of queries, `merge` joins what several programs found.

Within a split: FlashAttention's online softmax (Dao et al., 2022), in base 2. Splits join by their log-sum-exp.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_kernels.triton.tile import dot


@triton.jit
def _values_of(raw: tl.tensor, dtype: tl.constexpr, FP8: tl.constexpr) -> tl.tensor:
    """Convert a tile of the cache. e4m3 comes as bytes, since not every target can convert it."""
    if FP8:
        # The bits of e4m3, moved into those of float16 (subnormals too), make 1/256 of the number.
        magnitude = (raw & 0x7F).to(tl.int16)
        bits = (magnitude << 7) | ((raw & 0x80).to(tl.int16) << 8)
        number = bits.to(tl.float16, bitcast=True) * 256.0
        return tl.where(magnitude == 0x7F, float("nan"), number).to(dtype)
    else:
        return raw.to(dtype)


@triton.jit
def _joined(
    maximum: tl.tensor,
    total: tl.tensor,
    weighted: tl.tensor,
    other_maximum: tl.tensor,
    other_total: tl.tensor,
    other_weighted: tl.tensor,
) -> tl.tensor:
    """Join two splits' results, [M], [M], [M, D], in order.

    A split of which a query saw nothing has (-inf, 0, 0) and changes nothing. The products are spelled as fma, so that
    both kernels round alike whatever the compiler would have fused.
    """
    largest = tl.maximum(maximum, other_maximum)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    keep, add = tl.math.exp2(maximum - base), tl.math.exp2(other_maximum - base)
    total = tl.fma(total, keep, other_total * add)
    weighted = tl.fma(weighted, tl.broadcast_to(keep[:, None], weighted.shape), other_weighted * add[:, None])
    return largest, total, weighted


@triton.jit
def _normalised(total: tl.tensor, weighted: tl.tensor) -> tl.tensor:
    """A query that saw nothing gets zeros."""
    return weighted / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def _attend_keys(
    q: tl.tensor,
    position: tl.tensor,
    keys_at: tl.tensor,
    table: tl.tensor,
    key_begin: tl.tensor,
    key_end: tl.tensor,
    block_stride: tl.tensor,
    value_offset: tl.constexpr,
    scale: tl.tensor,
    window: tl.tensor,
    softcap: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FP8: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """Go through keys [key_begin, key_end) in tiles counted from position 0; return the results [M], [M], [M, D].

    scale: with log2(e), except before a softcap.
    """
    maximum = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    weighted = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    column = tl.arange(0, BLOCK_D)
    for start in range(key_begin // BLOCK_N * BLOCK_N, key_end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        inside = (key >= key_begin) & (key < key_end)
        block = tl.load(table + key // 16, mask=inside, other=-1)
        inside = inside & (block >= 0)
        at = keys_at + block.to(tl.int64)[:, None] * block_stride + (key % 16)[:, None] * HEAD_DIM + column[None, :]
        if BLOCK_D == HEAD_DIM:
            there = tl.broadcast_to(inside[:, None], [BLOCK_N, BLOCK_D])
        else:
            there = inside[:, None] & (column < HEAD_DIM)[None, :]
        keys = _values_of(tl.load(at, mask=there, other=0), q.dtype, FP8)
        nothing = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        scores = dot(q, tl.trans(keys), nothing, PRECISION) * scale
        if SOFTCAP:
            # tanh(|x|) = (1 - exp(-2|x|)) / (1 + exp(-2|x|)), which never overflows.
            small = tl.math.exp2(tl.abs(scores) * (-2.0 * 1.4426950408889634 / softcap))
            capped = (1.0 - small) / (1.0 + small) * (softcap * 1.4426950408889634)
            scores = tl.where(scores < 0.0, -capped, capped)
        visible = inside[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            visible = visible & (key[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))

        largest = tl.maximum(maximum, tl.max(scores, 1))
        # Where a query has seen nothing yet the largest is -inf, and -inf - -inf would be NaN.
        base = tl.where(largest == float("-inf"), 0.0, largest)
        weights = tl.math.exp2(scores - base[:, None])
        keep = tl.math.exp2(maximum - base)
        total = total * keep + tl.sum(weights, 1)
        values = _values_of(tl.load(at + value_offset, mask=there, other=0), q.dtype, FP8)
        weighted = dot(weights.to(q.dtype), values, weighted * keep[:, None], PRECISION)
        maximum = largest
    return maximum, total, weighted


@triton.jit(
    do_not_specialize=["table_stride", "partition", "window"],
    do_not_specialize_on_alignment=["work", "block_tables"],
)
def attend(
    q: tl.tensor,
    cache: tl.tensor,
    out: tl.tensor,
    partial_values: tl.tensor,
    partial_maxima: tl.tensor,
    partial_sums: tl.tensor,
    work: tl.tensor,
    block_tables: tl.tensor,
    q_stride: tl.tensor,
    out_stride: tl.tensor,
    block_stride: tl.tensor,
    table_stride: tl.tensor,
    partition: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    softcap: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FP8: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PARTITIONED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One item of the work list for one key/value head. Grid: (items or more, KV_HEADS).

    work: [4 + ...] int32: number of items, number of merges, where the merges and where the queries begin, the items.
    PARTITIONED: keys are taken in partitions, counted from position 0, that join as merged partial results do.
    """
    item = tl.program_id(0)
    kv_head = tl.program_id(1)
    if item >= tl.load(work):
        return
    fields = work + 4 + item * 6
    first_query, queries = tl.load(fields), tl.load(fields + 1)
    key_begin, key_end = tl.load(fields + 2), tl.load(fields + 3)
    table = block_tables + tl.load(fields + 4).to(tl.int64) * table_stride
    partial = tl.load(fields + 5)

    row = tl.arange(0, BLOCK_M)
    valid = row // GROUP < queries
    head = kv_head * GROUP + row % GROUP
    entry = work + tl.load(work + 3) + (first_query + row // GROUP) * 3
    token = tl.load(entry, mask=valid, other=0).to(tl.int64)
    position = tl.load(entry + 1, mask=valid, other=-1)
    column = tl.arange(0, BLOCK_D)
    used = valid[:, None] & (column < HEAD_DIM)[None, :]
    tile = tl.load(q + token[:, None] * q_stride + head[:, None] * HEAD_DIM + column[None, :], mask=used, other=0.0)

    keys_at = cache + kv_head * (16 * HEAD_DIM)
    value_offset: tl.constexpr = KV_HEADS * 16 * HEAD_DIM
    if PARTITIONED:
        maximum = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        total = tl.zeros([BLOCK_M], dtype=tl.float32)
        weighted = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
        for start in range(key_begin // partition * partition, key_end, partition):
            part_maximum, part_total, part_weighted = _attend_keys(
                tile, position, keys_at, table,
                tl.maximum(key_begin, start), tl.minimum(key_end, start + partition),
                block_stride, value_offset, scale, window, softcap,
                HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, FP8, WINDOW, SOFTCAP, PRECISION,
            )  # fmt: skip
            maximum, total, weighted = _joined(maximum, total, weighted, part_maximum, part_total, part_weighted)
    else:
        maximum, total, weighted = _attend_keys(
            tile, position, keys_at, table, key_begin, key_end,
            block_stride, value_offset, scale, window, softcap,
            HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, FP8, WINDOW, SOFTCAP, PRECISION,
        )  # fmt: skip

    if partial < 0:
        at = out + token[:, None] * out_stride + head[:, None] * HEAD_DIM + column[None, :]
        tl.store(at, _normalised(total, weighted).to(out.dtype.element_ty), mask=used)
    else:
        slot = (tl.load(entry + 2, mask=valid, other=0) + partial).to(tl.int64) * (KV_HEADS * GROUP) + head
        tl.store(partial_maxima + slot, maximum, mask=valid)
        tl.store(partial_sums + slot, total, mask=valid)
        tl.store(partial_values + slot[:, None] * HEAD_DIM + column[None, :], weighted, mask=used)


@triton.jit(do_not_specialize_on_alignment=["work"])
def merge(
    out: tl.tensor,
    partial_values: tl.tensor,
    partial_maxima: tl.tensor,
    partial_sums: tl.tensor,
    work: tl.tensor,
    out_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """Join one token's partial results for one key/value head's group. Grid: (merges or more, KV_HEADS)."""
    number = tl.program_id(0)
    kv_head = tl.program_id(1)
    if number >= tl.load(work + 1):
        return
    fields = work + tl.load(work + 2) + number * 3
    token, first, partials = tl.load(fields).to(tl.int64), tl.load(fields + 1).to(tl.int64), tl.load(fields + 2)
    row = tl.arange(0, BLOCK_G)
    column = tl.arange(0, BLOCK_D)
    valid = row < GROUP
    head = kv_head * GROUP + row
    used = valid[:, None] & (column < HEAD_DIM)[None, :]
    maximum = tl.full([BLOCK_G], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_G], dtype=tl.float32)
    weighted = tl.zeros([BLOCK_G, BLOCK_D], dtype=tl.float32)
    for partial in range(partials):
        slot = (first + partial) * (KV_HEADS * GROUP) + head
        maximum, total, weighted = _joined(
            maximum,
            total,
            weighted,
            tl.load(partial_maxima + slot, mask=valid, other=float("-inf")),
            tl.load(partial_sums + slot, mask=valid, other=0.0),
            tl.load(partial_values + slot[:, None] * HEAD_DIM + column[None, :], mask=used, other=0.0),
        )
    at = out + token * out_stride + head[:, None] * HEAD_DIM + column[None, :]
    tl.store(at, _normalised(total, weighted).to(out.dtype.element_ty), mask=used)
