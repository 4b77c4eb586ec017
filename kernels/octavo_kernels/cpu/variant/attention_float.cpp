// Attention over a cache of float32 or bfloat16.
#include "softmax.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

// Two dimensions of 16 keys.
template <CacheKind KIND>
INLINE void load_keys(const uint8_t* keys, int d, F& even, F& odd) {
    if constexpr (KIND == CACHE_F32) {
        even = load(reinterpret_cast<const float*>(keys) + d * BLOCK_TOKENS);
        odd = load(reinterpret_cast<const float*>(keys) + (d + 1) * BLOCK_TOKENS);
    } else {
        const I both = load_int(keys + d * BLOCK_TOKENS * 2);
        even = as_float(shift_left(both, 16));
        odd = as_float(and_int(both, set1_int(static_cast<int32_t>(0xffff0000u))));
    }
}

// Scores of ROWS queries over BLOCKS blocks, [ROWS][256].
template <CacheKind KIND, int ROWS, int BLOCKS>
INLINE void score_blocks(const HeadBlock* blocks, const float* q, int head_dim, float* scores) {
    F sum[ROWS][BLOCKS];
    UNROLLED(r, ROWS)
        UNROLLED(b, BLOCKS) sum[r][b] = zero();
    for (int d = 0; d < head_dim; d += 2) {
        UNROLLED(b, BLOCKS) {
            F even, odd;
            load_keys<KIND>(blocks[b].keys, d, even, odd);
            UNROLLED(r, ROWS) {
                sum[r][b] = mul_add(even, set1(q[r * head_dim + d]), sum[r][b]);
                sum[r][b] = mul_add(odd, set1(q[r * head_dim + d + 1]), sum[r][b]);
            }
        }
    }
    UNROLLED(b, BLOCKS) {
        UNROLLED(r, ROWS) store(scores + r * PARTITION_TOKENS + b * BLOCK_TOKENS, sum[r][b]);
    }
}

template <CacheKind KIND, int BLOCKS, int ROWS = ATTENTION_CHUNK>
INLINE void score_rows(const HeadBlock* blocks, const float* q, int rows, int head_dim, float* scores) {
    for (; rows >= ROWS; rows -= ROWS, q += ROWS * head_dim, scores += ROWS * PARTITION_TOKENS) {
        score_blocks<KIND, ROWS, BLOCKS>(blocks, q, head_dim, scores);
    }
    if constexpr (ROWS > 1) score_rows<KIND, BLOCKS, ROWS - 1>(blocks, q, rows, head_dim, scores);
}

template <CacheKind KIND>
void score(const Rows& rows, const Span& span, const Scratch& scratch) {
    const int head_dim = rows.attention.cache.head_dim;
    for (int block = 0; block < span.count;) {
        const HeadBlock* blocks = span.blocks + block;
        float* to = scratch.scores + block * BLOCK_TOKENS;
        const int count = span.count - block < SCORE_BLOCKS ? 1 : SCORE_BLOCKS;
        fetch_ahead(span, block, count, head_dim * BLOCK_TOKENS * element_bytes(KIND));
        if (count == SCORE_BLOCKS) {
            score_rows<KIND, SCORE_BLOCKS>(blocks, scratch.queries, rows.count, head_dim, to);
        } else {
            score_rows<KIND, 1>(blocks, scratch.queries, rows.count, head_dim, to);
        }
        block += count;
    }
}

// 16 dimensions of an even token's value, and of the next one's.
template <CacheKind KIND>
INLINE void load_values(const uint8_t* values, int token, int d, int head_dim, F& even, F& odd) {
    if constexpr (KIND == CACHE_F32) {
        even = load(reinterpret_cast<const float*>(values) + token * head_dim + d);
        odd = load(reinterpret_cast<const float*>(values) + (token + 1) * head_dim + d);
    } else {
        const I both = load_int(values + (token / 2 * head_dim + d) * 4);
        even = as_float(shift_left(both, 16));
        odd = as_float(and_int(both, set1_int(static_cast<int32_t>(0xffff0000u))));
    }
}

// Add a pair of tokens, or the one of them that the span begins or ends with: the other may be anybody's.
template <CacheKind KIND, bool EVEN, bool ODD, int ROWS, int VECTORS>
INLINE void add_values(const uint8_t* values, int token, int d, int head_dim, const float* weights,
                       F (&sum)[ROWS][VECTORS]) {
    F even[VECTORS], odd[VECTORS];
    UNROLLED(v, VECTORS) load_values<KIND>(values, token, d + v * 16, head_dim, even[v], odd[v]);
    UNROLLED(r, ROWS) {
        if constexpr (EVEN) {
            const F weight = set1(weights[r * PARTITION_TOKENS]);
            UNROLLED(v, VECTORS) sum[r][v] = mul_add(even[v], weight, sum[r][v]);
        }
        if constexpr (ODD) {
            const F weight = set1(weights[r * PARTITION_TOKENS + 1]);
            UNROLLED(v, VECTORS) sum[r][v] = mul_add(odd[v], weight, sum[r][v]);
        }
    }
}

// weighted[ROWS][d .. d + 16 * VECTORS] = sum over the span's tokens, in order
template <CacheKind KIND, int ROWS, int VECTORS>
INLINE void weigh_values(const Span& span, const float* weights, int head_dim, int d, float* weighted) {
    F sum[ROWS][VECTORS];
    UNROLLED(r, ROWS)
        UNROLLED(v, VECTORS) sum[r][v] = zero();
    for (int b = 0; b < span.count; ++b) {
        const int block = span.begin + b * BLOCK_TOKENS;
        const uint8_t* values = span.blocks[b].values;
        const float* at = weights + b * BLOCK_TOKENS;
        int token = span.low > block ? span.low - block : 0;
        const int end = span.high - block < BLOCK_TOKENS ? span.high - block : BLOCK_TOKENS;
        if (token % 2) {
            add_values<KIND, false, true>(values, token - 1, d, head_dim, at + token - 1, sum);
            ++token;
        }
        for (; token + 1 < end; token += 2) add_values<KIND, true, true>(values, token, d, head_dim, at + token, sum);
        if (token < end) add_values<KIND, true, false>(values, token, d, head_dim, at + token, sum);
    }
    UNROLLED(r, ROWS) {
        UNROLLED(v, VECTORS) store(weighted + r * head_dim + d + v * 16, sum[r][v]);
    }
}

template <CacheKind KIND, int VECTORS, int ROWS = ATTENTION_CHUNK>
INLINE void weigh_rows(const Span& span, int count, const float* weights, int head_dim, int d, float* weighted) {
    for (; count >= ROWS; count -= ROWS, weights += ROWS * PARTITION_TOKENS, weighted += ROWS * head_dim) {
        weigh_values<KIND, ROWS, VECTORS>(span, weights, head_dim, d, weighted);
    }
    if constexpr (ROWS > 1) weigh_rows<KIND, VECTORS, ROWS - 1>(span, count, weights, head_dim, d, weighted);
}

template <CacheKind KIND>
void attend(const Rows& rows, const Span& span, const Scratch& scratch, const Partial& partial) {
    const int head_dim = rows.attention.cache.head_dim;
    score<KIND>(rows, span, scratch);
    for (int r = 0; r < rows.count; r += PART_ROWS) {
        const Part part = part_at(rows, r);
        float* scores = scratch.scores + r * PARTITION_TOKENS;
        find_largest(rows, span, part, scores, partial.largest);
        soften<false>(rows, span, part, scores, nullptr, partial, nullptr);
    }
    int d = 0;
    for (; d + 16 * VALUE_VECTORS <= head_dim; d += 16 * VALUE_VECTORS) {
        weigh_rows<KIND, VALUE_VECTORS>(span, rows.count, scratch.scores, head_dim, d, partial.weighted);
    }
    for (; d < head_dim; d += 16) weigh_rows<KIND, 1>(span, rows.count, scratch.scores, head_dim, d, partial.weighted);
}

}  // namespace

void prepare_floats(const Rows& rows, const Scratch& scratch) {
    const Attention& a = rows.attention;
    const F scale = set1(query_scale(a));
    for (int r = 0; r < rows.count; ++r) {
        float* to = scratch.queries + r * a.cache.head_dim;
        for (int d = 0; d < a.cache.head_dim; d += 16) store(to + d, mul(load(a.q + rows.offsets[r] + d), scale));
    }
}

void attend_floats(const Rows& rows, const Span& span, const Scratch& scratch, const Partial& partial) {
    if (rows.attention.cache.kind == CACHE_F32) return attend<CACHE_F32>(rows, span, scratch, partial);
    attend<CACHE_BF16>(rows, span, scratch, partial);
}

}  // namespace octavo::OCTAVO_VARIANT
