"""The kernels of `sampling`, which says what each of them does. Their arithmetic decides tokens: nothing is contracted
(`enable_fp_fusion=False`), and sums are of integers."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_kernels.triton.philox import uniform

# Where a setting stands in its buffer must not decide which code runs: nothing is gained by its alignment.
_SETTINGS = (
    "status", "out", "top_p", "seed_low", "seed_high", "choice", "position", "inverse_temperature", "top_k", "min_p",
    "greedy",
)  # fmt: skip


@triton.jit
def weight_of(logits: tl.tensor, largest: tl.tensor, inverse: tl.tensor, least: tl.tensor) -> tl.tensor:
    """Return the integer weights: 2^n by the exponent's bits, the rest by Cephes' polynomial (Moshier) on ±ln(2) / 2.

    Decides tokens: as cpu/variant/sampling.cpp computes it, operation for operation.
    """
    x = tl.maximum((logits - largest) * inverse, -30.0)
    # To the nearest whole number, in the last bits of the sum.
    n = (x * 1.44269504 + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    whole = n.to(tl.float32)
    r = x - whole * 0.693359375
    r = r + whole * 2.12194440e-4
    p = r * 0.0 + 1.9875691500e-4
    p = p * r + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    p = (r * r) * p + r + 1.0
    weight = p * ((n + 127) << 23).to(tl.float32, bitcast=True)
    return (tl.where(weight < least, 0.0, weight) * 1073741824.0).to(tl.int32)


@triton.jit
def order_of(logits: tl.tensor) -> tl.tensor:
    """Return int32 in the order of the logits; -0 is 0."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _rank_of(logits: tl.tensor, ids: tl.tensor, ID_BITS: tl.constexpr) -> tl.tensor:
    return (order_of(logits).to(tl.int64) << ID_BITS) | ((1 << ID_BITS) - 1 - ids)


@triton.jit
def _load_chunk(logits: tl.tensor, row: tl.tensor, chunk: tl.tensor, stride: tl.tensor, vocab: tl.tensor,
                CHUNK: tl.constexpr) -> tl.tensor:  # fmt: skip
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    return at, tl.load(logits + row * stride + at, at < vocab, float("-inf"))


@triton.jit
def _largest(maxima: tl.tensor, row: tl.tensor, chunks: tl.tensor, CHUNKS: tl.constexpr) -> tl.tensor:
    at = tl.arange(0, CHUNKS)
    return tl.max(tl.load(maxima + row * chunks + at, at < chunks, float("-inf")), 0)


@triton.jit
def scan_kernel(
    logits: tl.tensor, maxima: tl.tensor, best: tl.tensor, magnitudes: tl.tensor, parts: tl.tensor, counts: tl.tensor,
    stride: tl.tensor, vocab: tl.tensor, chunks: tl.tensor, CHUNK: tl.constexpr, PART: tl.constexpr,
) -> None:  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, values = _load_chunk(logits, row, chunk, stride, vocab, CHUNK)
    if chunk == 0:
        tl.store(counts + row, 0)
    sizes = tl.where(at < vocab, values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)
    largest = tl.max(values, 0)
    place = row * chunks + chunk
    tl.store(maxima + place, largest)
    tl.store(best + place, tl.min(tl.where(values == largest, at, 0x7FFFFFFF), 0))
    tl.store(magnitudes + place, tl.max(sizes, 0))
    of_parts = tl.max(tl.reshape(values, [CHUNK // PART, PART]), 1)
    tl.store(parts + place * (CHUNK // PART) + tl.arange(0, CHUNK // PART), of_parts)


@triton.jit
def _filters(top_k: tl.tensor, top_p: tl.tensor, row: tl.tensor, vocab: tl.tensor) -> tl.tensor:
    """Return the row's k, 0 for all, its p, and whether it has a filter that ranks."""
    k, p = tl.load(top_k + row), tl.load(top_p + row)
    k = tl.where(k < vocab, k, 0)
    return k, p, (k > 0) | (p < 1.0)


@triton.jit(do_not_specialize_on_alignment=_SETTINGS)
def weigh_kernel(
    logits: tl.tensor, maxima: tl.tensor, weights: tl.tensor, inverse_temperature: tl.tensor, top_k: tl.tensor,
    top_p: tl.tensor, min_p: tl.tensor, greedy: tl.tensor, stride: tl.tensor, vocab: tl.tensor, chunks: tl.tensor,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
) -> None:  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    largest = _largest(maxima, row, chunks, CHUNKS)
    if (tl.load(greedy + row) == 0) & (tl.abs(largest) < float("inf")):
        _, _, filtered = _filters(top_k, top_p, row, vocab)
        least = tl.where(filtered, 0.0, tl.load(min_p + row))
        _, values = _load_chunk(logits, row, chunk, stride, vocab, CHUNK)
        found = weight_of(values, largest, tl.load(inverse_temperature + row), least)
        tl.store(weights + row * chunks + chunk, tl.sum(found.to(tl.int64), 0))


@triton.jit
def _total(weights: tl.tensor, row: tl.tensor, chunks: tl.tensor, CHUNKS: tl.constexpr) -> tl.tensor:
    at = tl.arange(0, CHUNKS)
    return tl.sum(tl.load(weights + row * chunks + at, at < chunks, 0), 0)


@triton.jit
def _needed(p: tl.tensor, total: tl.tensor) -> tl.tensor:
    """Return the weight that holds the share p."""
    return tl.maximum(tl.ceil(p * total.to(tl.float64)).to(tl.int64), 1)


@triton.jit(do_not_specialize_on_alignment=_SETTINGS)
def limit_kernel(
    maxima: tl.tensor, parts: tl.tensor, weights: tl.tensor, limits: tl.tensor, inverse_temperature: tl.tensor,
    top_k: tl.tensor, top_p: tl.tensor, greedy: tl.tensor, vocab: tl.tensor, chunks: tl.tensor, num_parts: tl.tensor,
    CHUNKS: tl.constexpr, PARTS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    k, p, filtered = _filters(top_k, top_p, row, vocab)
    largest = _largest(maxima, row, chunks, CHUNKS)
    limit = tl.full([], float("inf"), tl.float32)
    if filtered & (tl.load(greedy + row) == 0) & (tl.abs(largest) < float("inf")):
        # In temperatures from the largest: farther down a weight is 0.
        distance = tl.full([], 21.0, tl.float32)
        if k == 0:
            # Tokens that together, were all as heavy as the heaviest of them, do not exceed what may be missing.
            total = _total(weights, row, chunks, CHUNKS)
            spare = ((total - _needed(p, total)) // vocab).to(tl.float32)
            # Generously: one part in a thousand is far more than the rounding of a weight.
            distance = tl.where(spare >= 1.0, tl.minimum(20.794416 - tl.log(tl.maximum(spare, 1.0)) + 1e-3, 21.0), 21.0)
        inverse = tl.load(inverse_temperature + row).to(tl.float64)
        limit = (largest.to(tl.float64) - distance.to(tl.float64) / inverse).to(tl.float32)
        if (k > 0) & (k <= num_parts):
            # At least k logits reach the k-th largest of the maxima of disjoint parts.
            at = tl.arange(0, PARTS)
            orders = order_of(tl.load(parts + row * num_parts + at, at < num_parts, float("-inf")))
            # From -infinity's place in the order.
            low, high = tl.full([], -0x7F800001, tl.int32), order_of(largest)
            while low < high:
                middle = (low | high) - ((low ^ high) >> 1)
                reach = tl.sum(((orders >= middle) & (at < num_parts)).to(tl.int32), 0)
                low = tl.where(reach >= k, middle, low)
                high = tl.where(reach == k, middle, tl.where(reach > k, high, middle - 1))
            least = tl.where(low < 0, low ^ 0x7FFFFFFF, low).to(tl.float32, bitcast=True)
            limit = tl.maximum(limit, least)
    tl.store(limits + row, limit)


@triton.jit(do_not_specialize_on_alignment=_SETTINGS)
def gather_kernel(
    logits: tl.tensor, maxima: tl.tensor, limits: tl.tensor, counts: tl.tensor, to_logits: tl.tensor, to_ids: tl.tensor,
    inverse_temperature: tl.tensor, stride: tl.tensor, vocab: tl.tensor, chunks: tl.tensor,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, CANDIDATES: tl.constexpr,
) -> None:  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    limit = tl.load(limits + row)
    if limit < float("inf"):
        at, values = _load_chunk(logits, row, chunk, stride, vocab, CHUNK)
        largest = _largest(maxima, row, chunks, CHUNKS)
        weights = weight_of(values, largest, tl.load(inverse_temperature + row), 0.0)
        kept = ((values >= limit) & (weights > 0)).to(tl.int32)
        number = tl.sum(kept, 0)
        if number > 0:
            # In whatever order chunks come: what is made of the candidates does not depend on it.
            place = tl.atomic_add(counts + row, number) + tl.cumsum(kept, 0) - 1
            room = (kept > 0) & (place < CANDIDATES)
            tl.store(to_logits + row * CANDIDATES + place, values, room)
            tl.store(to_ids + row * CANDIDATES + place, at, room)


@triton.jit
def _candidates(
    logits: tl.tensor, ids: tl.tensor, begin: tl.tensor, count: tl.tensor, compact: tl.tensor, largest: tl.tensor,
    inverse: tl.tensor, least: tl.tensor, BLOCK: tl.constexpr, ID_BITS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return a block's ids, ranks and weights; weight 0 beyond the last."""
    at = begin + tl.arange(0, BLOCK)
    values = tl.load(logits + at, at < count, float("-inf"))
    of_list = tl.load(ids + at, at < tl.where(compact, count, 0), 0)
    own = tl.where(compact, of_list, at)
    return own, _rank_of(values, own, ID_BITS), weight_of(values, largest, inverse, least)


@triton.jit
def _weight_from(
    rank: tl.tensor, logits: tl.tensor, ids: tl.tensor, count: tl.tensor, compact: tl.tensor, largest: tl.tensor,
    inverse: tl.tensor, least: tl.tensor, BLOCK: tl.constexpr, ID_BITS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the weight of the candidates from the beginning of the ranking to `rank`."""
    held = rank * 0
    for begin in range(0, count, BLOCK):
        _, ranks, weights = _candidates(
            logits, ids, begin, count, compact, largest, inverse, least, BLOCK, ID_BITS
        )  # fmt: skip
        held += tl.sum(tl.where(ranks >= rank, weights, 0).to(tl.int64), 0)
    return held


@triton.jit
def _last_rank(
    need: tl.tensor, low: tl.tensor, high: tl.tensor, logits: tl.tensor, ids: tl.tensor, count: tl.tensor,
    compact: tl.tensor, largest: tl.tensor, inverse: tl.tensor, NUMBER: tl.constexpr, BLOCK: tl.constexpr,
    ID_BITS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the last rank of the shortest beginning of the ranking that holds `need`; `low` if there is none.

    The interval is halved, and its ends moved to ranks that there are: it ends when one is left in it. `need` is a
    number of tokens or a weight.
    """
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)
        held, above, below = low * 0, high, low
        for begin in range(0, count, BLOCK):
            _, ranks, weights = _candidates(
                logits, ids, begin, count, compact, largest, inverse, 0.0, BLOCK, ID_BITS
            )  # fmt: skip
            heavy = weights > 0
            if NUMBER:
                weights = heavy.to(tl.int32)
            reach = heavy & (ranks >= middle)
            held += tl.sum(tl.where(reach, weights, 0).to(tl.int64), 0)
            above = tl.minimum(above, tl.min(tl.where(reach, ranks, high), 0))
            below = tl.maximum(below, tl.max(tl.where(heavy & (ranks < middle), ranks, low), 0))
        low = tl.where(held >= need, above, low)
        high = tl.where(held == need, low, tl.where(held > need, high, below))
    return low


@triton.jit
def _draw_of_all(
    uniform: tl.tensor, logits: tl.tensor, weights: tl.tensor, largest: tl.tensor, inverse: tl.tensor, least: tl.tensor,
    row: tl.tensor, stride: tl.tensor, vocab: tl.tensor, chunks: tl.tensor, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    at = tl.arange(0, CHUNKS)
    sums = tl.load(weights + row * chunks + at, at < chunks, 0)
    target = (uniform * tl.sum(sums, 0).to(tl.float64)).to(tl.int64)
    cumulative = tl.cumsum(sums, 0)
    before = cumulative <= target
    chunk = tl.sum(before.to(tl.int32), 0)
    target -= tl.sum(tl.where(before, sums, 0), 0)
    _, values = _load_chunk(logits, row, chunk, stride, vocab, CHUNK)
    cumulative = tl.cumsum(weight_of(values, largest, inverse, least).to(tl.int64), 0)
    return chunk * CHUNK + tl.sum((cumulative <= target).to(tl.int32), 0)


@triton.jit
def _draw_of_candidates(
    uniform: tl.tensor, last: tl.tensor, logits: tl.tensor, ids: tl.tensor, count: tl.tensor, compact: tl.tensor,
    largest: tl.tensor, inverse: tl.tensor, least: tl.tensor, vocab: tl.tensor, BLOCK: tl.constexpr,
    ID_BITS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the first id at which the cumulative weight exceeds its share: by halving, as in _last_rank."""
    total = _weight_from(last, logits, ids, count, compact, largest, inverse, least, BLOCK, ID_BITS)
    target = (uniform * total.to(tl.float64)).to(tl.int64)
    low, high = vocab * 0, vocab - 1
    while low < high:
        middle = (low + high) // 2
        held, above, below = last * 0, high, low
        for begin in range(0, count, BLOCK):
            own, ranks, weights = _candidates(
                logits, ids, begin, count, compact, largest, inverse, least, BLOCK, ID_BITS
            )  # fmt: skip
            kept = (weights > 0) & (ranks >= last)
            reached = kept & (own <= middle)
            held += tl.sum(tl.where(reached, weights, 0).to(tl.int64), 0)
            below = tl.maximum(below, tl.max(tl.where(reached, own, low), 0))
            above = tl.minimum(above, tl.min(tl.where(kept & (own > middle), own, high), 0))
        low = tl.where(held > target, low, above)
        high = tl.where(held > target, below, high)
    return low


@triton.jit(do_not_specialize_on_alignment=_SETTINGS)
def choose_kernel(
    logits: tl.tensor, status: tl.tensor, out: tl.tensor,
    maxima: tl.tensor, best: tl.tensor, magnitudes: tl.tensor, weights: tl.tensor, limits: tl.tensor, counts: tl.tensor,
    to_logits: tl.tensor, to_ids: tl.tensor,
    top_p: tl.tensor, seed_low: tl.tensor, seed_high: tl.tensor, choice: tl.tensor, position: tl.tensor,
    inverse_temperature: tl.tensor, top_k: tl.tensor, min_p: tl.tensor, greedy: tl.tensor,
    stride: tl.tensor, vocab: tl.tensor, chunks: tl.tensor, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    CANDIDATES: tl.constexpr, BLOCK: tl.constexpr, ID_BITS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, CHUNKS)
    place = row * chunks + at
    largest = _largest(maxima, row, chunks, CHUNKS)
    magnitude = tl.max(tl.load(magnitudes + place, at < chunks, 0), 0)
    if status is None:
        failed = magnitude >= 0x7F800000
    else:
        # Adjusted logits may be -infinity.
        failed = (tl.load(status + row) < 0) | (magnitude > 0x7F800000) | (largest == float("inf"))
    token = tl.where(failed, -1, -2)
    if (failed == 0) & (largest > float("-inf")):
        if tl.load(greedy + row) != 0:
            holds = tl.load(maxima + place, at < chunks, float("-inf")) == largest
            token = tl.min(tl.where(holds, tl.load(best + place, at < chunks, 0x7FFFFFFF), 0x7FFFFFFF), 0)
        else:
            k, p, filtered = _filters(top_k, top_p, row, vocab)
            inverse, least = tl.load(inverse_temperature + row), tl.load(min_p + row)
            draw = uniform(
                tl.load(seed_low + row), tl.load(seed_high + row), tl.load(choice + row), tl.load(position + row)
            )  # fmt: skip
            if filtered:
                found = tl.load(counts + row)
                compact = found <= CANDIDATES
                source = logits + row * stride
                if compact:
                    source = to_logits + row * CANDIDATES
                count = tl.where(compact, found, vocab)
                ids = to_ids + row * CANDIDATES
                last = order_of(tl.load(limits + row)).to(tl.int64) << ID_BITS
                first = (order_of(largest).to(tl.int64) << ID_BITS) | ((1 << ID_BITS) - 1)
                total = _total(weights, row, chunks, CHUNKS)
                if k > 0:
                    last = _last_rank(
                        k.to(tl.int64), last, first, source, ids, count, compact, largest, inverse, True, BLOCK, ID_BITS
                    )  # fmt: skip
                    total = _weight_from(
                        last, source, ids, count, compact, largest, inverse, 0.0, BLOCK, ID_BITS
                    )  # fmt: skip
                if p < 1.0:
                    last = _last_rank(
                        _needed(p, total), last, first, source, ids, count, compact, largest, inverse, False, BLOCK,
                        ID_BITS,
                    )  # fmt: skip
                token = _draw_of_candidates(
                    draw, last, source, ids, count, compact, largest, inverse, least, vocab, BLOCK, ID_BITS
                )  # fmt: skip
            else:
                token = _draw_of_all(
                    draw, logits, weights, largest, inverse, least, row, stride, vocab, chunks, CHUNK, CHUNKS
                )  # fmt: skip
    tl.store(out + row, token)
