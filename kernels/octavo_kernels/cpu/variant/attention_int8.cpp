// Attention over an int8 cache, in integers: a query and a partition's weights (with the values' scales in them) become
// fixed-point numbers of two digits, upper * 128 + lower, with a unit of their own; the sums are exact.
#include "digits.hpp"
#include "softmax.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr float QUERY_MOST = 127 * 128, WEIGHT_MOST = 128 * 128 - 1;

struct Queries {
    const int8_t* digits[2];  // upper, lower: [rows][stride]
    int stride;
    const float* units;      // of the lower digits, [rows]
    const int32_t* offsets;  // of the sums, [rows]
};

INLINE Queries skip_rows(const Queries& q, int rows) {
    return {{q.digits[0] + rows * q.stride, q.digits[1] + rows * q.stride}, q.stride, q.units + rows, q.offsets + rows};
}

// Scores of ROWS queries over BLOCKS blocks, [ROWS][256].
//
// Meanwhile the blocks that will be wanted next are fetched, a line at a time: so the memory is busy all along.
template <int ROWS, int BLOCKS>
INLINE void score_blocks(const HeadBlock* blocks, const uint8_t* const* ahead, const Queries& q, int head_dim,
                         float* scores) {
    I sum[ROWS][BLOCKS];
    for (int digit = 0; digit < 2; ++digit) {
        UNROLLED(r, ROWS) {
            const I offset = set1_int(q.offsets[r]);
            UNROLLED(b, BLOCKS) sum[r][b] = digit ? add_int(shift_left(sum[r][b], DIGIT_BITS), offset) : zero_int();
        }
        const int8_t* digits = q.digits[digit];
        for (int d = 0; d < head_dim; d += 4) {
            I keys[BLOCKS];
            UNROLLED(b, BLOCKS) keys[b] = load_int(blocks[b].keys + d * BLOCK_TOKENS);
            for (int b = digit; b < BLOCKS; b += 2) __builtin_prefetch(ahead[b] + d * BLOCK_TOKENS, 0, 2);
            UNROLLED(r, ROWS) {
                const I four = broadcast4(digits + r * q.stride + d);
                UNROLLED(b, BLOCKS) sum[r][b] = dot4(sum[r][b], keys[b], four);
            }
        }
    }
    UNROLLED(b, BLOCKS) {
        const F scales = load(blocks[b].key_scales);
        UNROLLED(r, ROWS) {
            const F score = mul(mul(to_float(sum[r][b]), scales), set1(q.units[r]));
            store(scores + r * PARTITION_TOKENS + b * BLOCK_TOKENS, score);
        }
    }
}

template <int BLOCKS, int ROWS = ATTENTION_CHUNK>
INLINE void score_rows(const HeadBlock* blocks, const uint8_t* const* ahead, Queries q, int rows, int head_dim,
                       float* scores) {
    for (; rows >= ROWS; rows -= ROWS, q = skip_rows(q, ROWS), scores += ROWS * PARTITION_TOKENS) {
        score_blocks<ROWS, BLOCKS>(blocks, ahead, q, head_dim, scores);
    }
    if constexpr (ROWS > 1) score_rows<BLOCKS, ROWS - 1>(blocks, ahead, q, rows, head_dim, scores);
}

void score(const Rows& rows, const Span& span, const Scratch& scratch) {
    const int head_dim = rows.attention.cache.head_dim, stride = scratch.query_stride;
    const Queries q{{scratch.digits, scratch.digits + ATTENTION_ROWS * stride}, stride, scratch.units, scratch.offsets};
    const uint8_t* ahead[PARTITION_TOKENS / BLOCK_TOKENS];
    for (int b = 0; b < span.count; ++b) ahead[b] = span.next[b] ? span.next[b] : span.blocks[b].values;
    for (int block = 0; block < span.count;) {
        const HeadBlock* blocks = span.blocks + block;
        float* to = scratch.scores + block * BLOCK_TOKENS;
        const int count = span.count - block < SCORE_BLOCKS ? 1 : SCORE_BLOCKS;
        if (count == SCORE_BLOCKS) {
            score_rows<SCORE_BLOCKS>(blocks, ahead + block, q, rows.count, head_dim, to);
        } else {
            score_rows<1>(blocks, ahead + block, q, rows.count, head_dim, to);
        }
        block += count;
    }
}

// The largest magnitude that a unit makes `most` digits of. What is not finite stays so by the unit.
INLINE float inverse_unit(float largest, float most) {
    const float inverse = most / largest;
    return inverse < __builtin_huge_valf() ? inverse : 0.0f;
}

// Weights as digits, upper and lower, up to whole 64 tokens. Their units come as each row's largest weight.
INLINE void quantize_weights(const Span& span, Part part, const float* weights, const Scratch& scratch) {
    for (int r = part.begin; r < part.end; ++r, weights += PARTITION_TOKENS) {
        uint8_t* upper = scratch.weights + r * PARTITION_TOKENS;
        uint8_t* lower = upper + ATTENTION_ROWS * PARTITION_TOKENS;
        const F factor = set1(inverse_unit(scratch.weight_units[r], WEIGHT_MOST));
        int b = 0;
        for (; b + 4 <= span.count; b += 4) {
            I whole[4];
            UNROLLED(i, 4) whole[i] = round_int(mul(load(weights + (b + i) * BLOCK_TOKENS), factor));
            store_digits(upper + b * BLOCK_TOKENS, lower + b * BLOCK_TOKENS, whole);
        }
        if (b < span.count) {
            I whole[4];
            UNROLLED(i, 4) {
                const int at = (b + i) * BLOCK_TOKENS;
                whole[i] = b + i < span.count ? round_int(mul(load(weights + at), factor)) : zero_int();
            }
            store_digits(upper + b * BLOCK_TOKENS, lower + b * BLOCK_TOKENS, whole);
        }
        scratch.weight_units[r] = scratch.weight_units[r] / WEIGHT_MOST;
    }
}

struct Weights {
    const uint8_t* digits[2];  // upper, lower: [rows][256]
    const float* units;        // of the lower digits, [rows]
};

INLINE Weights skip_rows(const Weights& w, int rows) {
    return {{w.digits[0] + rows * PARTITION_TOKENS, w.digits[1] + rows * PARTITION_TOKENS}, w.units + rows};
}

// weighted[ROWS][d .. d + 16 * VECTORS]
template <int ROWS, int VECTORS>
INLINE void weigh_values(const Span& span, const uint8_t* const* ahead, const Weights& weights, int head_dim, int d,
                         float* weighted) {
    I sum[ROWS][VECTORS];
    for (int digit = 0; digit < 2; ++digit) {
        UNROLLED(r, ROWS)
            UNROLLED(v, VECTORS) sum[r][v] = digit ? shift_left(sum[r][v], DIGIT_BITS) : zero_int();
        const uint8_t* at = weights.digits[digit];
        for (int b = 0; b < span.count; ++b, at += BLOCK_TOKENS) {
            const uint8_t* values = span.blocks[b].values + d * 4;
            for (int t = 0; t < BLOCK_TOKENS; t += 4, values += head_dim * 4) {
                I four[VECTORS];
                UNROLLED(v, VECTORS) four[v] = load_int(values + v * 64);
                for (int v = digit; v < VECTORS; v += 2)
                    __builtin_prefetch(ahead[b] + d * BLOCK_TOKENS + (t / 4 * VECTORS + v) * 64, 0, 2);
                UNROLLED(r, ROWS) {
                    const I weight = broadcast4(at + r * PARTITION_TOKENS + t);
                    UNROLLED(v, VECTORS) sum[r][v] = dot4_small(sum[r][v], weight, four[v]);
                }
            }
        }
    }
    UNROLLED(r, ROWS) {
        UNROLLED(v, VECTORS) {
            store(weighted + r * head_dim + d + v * 16, mul(to_float(sum[r][v]), set1(weights.units[r])));
        }
    }
}

template <int VECTORS, int ROWS = ATTENTION_CHUNK>
INLINE void weigh_rows(const Span& span, const uint8_t* const* ahead, int count, Weights weights, int head_dim, int d,
                       float* weighted) {
    for (; count >= ROWS; count -= ROWS, weights = skip_rows(weights, ROWS), weighted += ROWS * head_dim) {
        weigh_values<ROWS, VECTORS>(span, ahead, weights, head_dim, d, weighted);
    }
    if constexpr (ROWS > 1) weigh_rows<VECTORS, ROWS - 1>(span, ahead, count, weights, head_dim, d, weighted);
}

void weigh(const Rows& rows, const Span& span, const Scratch& scratch, float* weighted) {
    const int head_dim = rows.attention.cache.head_dim;
    const Weights weights{{scratch.weights, scratch.weights + ATTENTION_ROWS * PARTITION_TOKENS}, scratch.weight_units};
    const uint8_t* ahead[PARTITION_TOKENS / BLOCK_TOKENS];
    for (int b = 0; b < span.count; ++b) {
        ahead[b] = span.next[b] ? span.next[b] + head_dim * BLOCK_TOKENS : span.blocks[b].values;
        if (span.next[b]) fetch(ahead[b] + head_dim * BLOCK_TOKENS, 2 * 64);  // the scales
    }
    int d = 0;
    for (; d + 16 * VALUE_VECTORS <= head_dim; d += 16 * VALUE_VECTORS) {
        weigh_rows<VALUE_VECTORS>(span, ahead, rows.count, weights, head_dim, d, weighted);
    }
    for (; d < head_dim; d += 16) weigh_rows<1>(span, ahead, rows.count, weights, head_dim, d, weighted);
}

// A query's digits: the query divided by its unit is upper * 128 + lower.
INLINE void quantize_query(const float* query, float scale, int head_dim, int row, const Scratch& to) {
    const F factor = set1(scale);
    I most = zero_int();
    for (int d = 0; d < head_dim; d += 16)
        most = max_int(most, and_int(as_int(mul(load(query + d), factor)), set1_int(0x7fffffff)));
    const int32_t bits = max_lanes_int(most);
    float largest;
    memcpy(&largest, &bits, 4);
    // Not finite: the unit is not, and so the scores are not. Too small for an inverse: 0.
    const float inverse = largest < __builtin_huge_valf() ? inverse_unit(largest, QUERY_MOST) : 0.0f;
    int8_t* upper = to.digits + row * to.query_stride;
    int8_t* lower = upper + ATTENTION_ROWS * to.query_stride;
    I sums = zero_int();
    for (int d = 0; d < head_dim; d += 16) {
        const I whole = inverse == 0.0f ? zero_int() : round_int(mul(mul(load(query + d), factor), set1(inverse)));
        const I high = shift_right(add_int(whole, set1_int(1 << (DIGIT_BITS - 1))), DIGIT_BITS);
        // whole - high * 128: adding changes it by a multiple of 256, and one byte is kept
        store_int8(upper + d, high);
        store_int8(lower + d, add_int(whole, shift_left(high, DIGIT_BITS)));
        sums = add_int(sums, whole);
    }
    for (int d = head_dim; d < to.query_stride; d += 16) {
        store_int8(upper + d, zero_int());
        store_int8(lower + d, zero_int());
    }
    to.units[row] = largest / QUERY_MOST;
    to.offsets[row] = WEIGHTS_LESS_128 ? 0 : -128 * sum_lanes_int(sums);
}

}  // namespace

void prepare_integers(const Rows& rows, const Scratch& scratch) {
    const Attention& a = rows.attention;
    const float scale = query_scale(a);
    for (int r = 0; r < rows.count; ++r) {
        quantize_query(a.q + rows.offsets[r], scale, a.cache.head_dim, r, scratch);
    }
}

void attend_integers(const Rows& rows, const Span& span, const Scratch& scratch, const Partial& partial) {
    const bool tiles = fits_tiles(rows.attention.cache, rows.count);
    tiles ? multiply_keys(span, scratch) : score(rows, span, scratch);
    for (int b = 0; b < span.count; ++b)
        store(scratch.value_scales + b * BLOCK_TOKENS, load(span.blocks[b].value_scales));
    for (int r = 0; r < rows.count; r += PART_ROWS) {
        const Part part = part_at(rows, r);
        float* scores = tiles ? scratch.scores : scratch.scores + r * PARTITION_TOKENS;
        if (tiles) scale_scores(span, part.begin, part.end, scratch, scores);
        find_largest(rows, span, part, scores, partial.largest);
        soften<true>(rows, span, part, scores, scratch.value_scales, partial, scratch.weight_units);
        quantize_weights(span, part, scores, scratch);
        // A part of the values each time, for that waits for memory.
        if (tiles) stage_values(rows, span, part.begin, part.end, scratch);
    }
    tiles ? weigh_by_tiles(rows, span, scratch, partial.weighted) : weigh(rows, span, scratch, partial.weighted);
}

}  // namespace octavo::OCTAVO_VARIANT
