// The softmax of a partition's scores, all rows of a work item at once.
#pragma once
#include "attention.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr float LOWEST = -3.402823466e38f;

// What queries are multiplied with, so that scores are to the base of 2; where they are capped, that comes afterwards.
INLINE float query_scale(const Attention& a) { return a.softcap != 0.0f ? a.scale : a.scale * LOG2_E; }

// The positions that a row sees, counted from the span's first, and the blocks that it sees whole.
struct Seen {
    int low, high, first_whole, end_whole;
};

INLINE Seen seen_by(const Rows& rows, const Span& span, int row) {
    const int low = rows.first[row] - span.begin, high = rows.last[row] + 1 - span.begin;
    int first = low > 0 ? (low + BLOCK_TOKENS - 1) / BLOCK_TOKENS : 0, end = high > 0 ? high / BLOCK_TOKENS : 0;
    if (end > span.count) end = span.count;
    if (first > end) first = end;
    return {low, high, first, end};
}

INLINE F keep_seen(F value, const Seen& seen, int block, F other) {
    return keep_between(value, seen.low - block * BLOCK_TOKENS, seen.high - block * BLOCK_TOKENS, other);
}

INLINE void cap_scores(const Rows& rows, const Span& span, int count, float* scores) {
    const F cap = set1(rows.attention.softcap), to_log2 = set1(rows.attention.softcap * LOG2_E);
    for (int r = 0; r < count; ++r, scores += PARTITION_TOKENS) {
        for (int i = 0; i < span.count * BLOCK_TOKENS; i += 16)
            store(scores + i, mul(hyperbolic_tangent(div(load(scores + i), cap)), to_log2));
    }
}

INLINE F mask_scores(const Seen& seen, int begin, int end, float* scores, F most) {
    for (int b = begin; b < end; ++b) {
        float* at = scores + b * BLOCK_TOKENS;
        const F value = keep_seen(load(at), seen, b, set1(-__builtin_huge_valf()));
        store(at, value);
        most = max(most, value);
    }
    return most;
}

// A few rows, whose scores stay in the first-level cache: a pass is made over all of them before the next one begins,
// so that latencies overlap. `scores` begin with theirs.
struct Part {
    int begin, end;
};
constexpr int PART_ROWS = 4;

INLINE Part part_at(const Rows& rows, int begin) {
    return {begin, begin + PART_ROWS < rows.count ? begin + PART_ROWS : rows.count};
}

// Each row's largest score; what a row does not see becomes -inf. Where a row sees nothing the largest stays finite:
// -inf - -inf would be NaN.
INLINE void find_largest(const Rows& rows, const Span& span, Part part, float* scores, float* largest) {
    if (rows.attention.softcap != 0.0f) cap_scores(rows, span, part.end - part.begin, scores);
    for (int r = part.begin; r < part.end; ++r, scores += PARTITION_TOKENS) {
        const Seen seen = seen_by(rows, span, r);
        F most = mask_scores(seen, 0, seen.first_whole, scores, set1(LOWEST));
        for (int b = seen.first_whole; b < seen.end_whole; ++b) most = max(most, load(scores + b * BLOCK_TOKENS));
        largest[r] = max_lanes(mask_scores(seen, seen.end_whole, span.count, scores, most));
    }
}

// What a row's weights add up to, and the bits of the largest of those that have the values' scales in them.
struct Softened {
    F largest_score, total;
    I largest_weight;
};

template <bool SCALED, bool WHOLE>
INLINE void soften_blocks(const Seen& seen, int begin, int end, float* scores, const float* value_scales,
                          Softened& to) {
    for (int b = begin; b < end; ++b) {
        float* at = scores + b * BLOCK_TOKENS;
        F weight = power_of_two(sub(load(at), to.largest_score));
        if constexpr (!WHOLE) weight = keep_seen(weight, seen, b, zero());
        to.total = add(to.total, weight);
        if constexpr (SCALED) {
            weight = mul(weight, load(value_scales + b * BLOCK_TOKENS));
            // The scales of what the row does not see may be anything.
            if constexpr (!WHOLE) weight = keep_seen(weight, seen, b, zero());
            to.largest_weight = max_int(to.largest_weight, and_int(as_int(weight), set1_int(0x7fffffff)));
        }
        store(at, weight);
    }
}

// Turn scores into weights; what a row does not see gets an exact 0. If SCALED, the weights take the values' scales
// [256] in, and `most` becomes each row's largest one.
template <bool SCALED>
INLINE void soften(const Rows& rows, const Span& span, Part part, float* scores, const float* value_scales,
                   const Partial& partial, float* most) {
    for (int r = part.begin; r < part.end; ++r, scores += PARTITION_TOKENS) {
        const Seen seen = seen_by(rows, span, r);
        Softened row{set1(partial.largest[r]), zero(), zero_int()};
        soften_blocks<SCALED, false>(seen, 0, seen.first_whole, scores, value_scales, row);
        soften_blocks<SCALED, true>(seen, seen.first_whole, seen.end_whole, scores, value_scales, row);
        soften_blocks<SCALED, false>(seen, seen.end_whole, span.count, scores, value_scales, row);
        partial.total[r] = sum_lanes(row.total);
        if constexpr (SCALED) {
            const int32_t bits = max_lanes_int(row.largest_weight);
            memcpy(most + r, &bits, 4);
        }
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_VARIANT
