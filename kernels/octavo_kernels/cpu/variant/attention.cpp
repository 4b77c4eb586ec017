// Paged attention over block tables, for decode rows and prefill chunks mixed in one call.
//
// A context is cut into partitions of 256 tokens counted from position 0. Each gives (largest score, sum of the
// weights, weighted values), and partitions merge in order, as in FlashAttention's online softmax (Dao et al., 2022). A
// query's numbers depend on its own position only: what others in its tile see in addition enters as an exact zero.
//
// An int8 cache is attended in integers. A query and a partition's weights (with the values' scales in them) become
// fixed-point numbers of two digits, upper * 128 + lower, with a scale of their own; the sums are exact.
#include "cache.hpp"
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr float LOWEST = -3.402823466e38f, TINY = 1.17549435e-38f;
// Two digits: a query's upper one is -127..127 and its lower one -64..63, a weight's are 0..127.
constexpr int DIGIT_BITS = 7;
constexpr float QUERY_MOST = 127 * 128, DIGITS_MOST = 128 * 128 - 1;

// The rows (query, head) that one work item computes, and the positions that they see. They are of one sequence, or see
// the same blocks of the partition at hand.
struct Rows {
    const Attention& attention;
    const int32_t* table;       // of blocks
    const int32_t* next_table;  // of the sequence that is likely to follow on this thread, or null
    int kv_head, count;
    int64_t offsets[ATTENTION_ROWS];  // of the row in q and out
    int first[ATTENTION_ROWS], last[ATTENTION_ROWS];
    int lowest, highest;  // of all rows; nobody sees anything if lowest > highest

    const float* query(int row) const { return attention.q + offsets[row]; }
    float* output(int row) const { return attention.out + offsets[row]; }
};

// A group of more than 16 heads is cut into slices.
INLINE int slices(const Attention& a) { return (a.heads / a.cache.kv_heads + ATTENTION_ROWS - 1) / ATTENTION_ROWS; }

INLINE int lanes(const Attention& a) { return a.cache.kv_heads * slices(a); }

INLINE int rows_in(const Attention& a, const QueryTile& tile, int slice) {
    const int left = a.heads / a.cache.kv_heads - slice * ATTENTION_ROWS;
    return tile.count * (left < ATTENTION_ROWS ? left : ATTENTION_ROWS);
}

INLINE void add_tile(Rows& rows, const QueryTile& tile, int slice) {
    const Attention& a = rows.attention;
    const int group = a.heads / a.cache.kv_heads, heads = rows_in(a, tile, slice) / tile.count;
    const int first_head = rows.kv_head * group + slice * ATTENTION_ROWS, context = a.context_lengths[tile.row];
    rows.table = a.block_tables + tile.row * a.max_blocks;
    for (int r = 0; r < tile.count * heads; ++r) {
        const int token = tile.begin + r / heads, position = a.positions[token], at = rows.count++;
        rows.offsets[at] = (static_cast<int64_t>(token) * a.heads + first_head + r % heads) * a.cache.head_dim;
        rows.last[at] = position < context ? position : context - 1;
        rows.first[at] = a.window && rows.last[at] >= a.window ? rows.last[at] - a.window + 1 : 0;
        if (rows.first[at] < rows.lowest) rows.lowest = rows.first[at];
        if (rows.last[at] > rows.highest) rows.highest = rows.last[at];
    }
}

INLINE Rows rows_of(const Attention& a, int item) {
    const int lane = item % lanes(a);
    Rows rows{a, nullptr, nullptr, lane / slices(a), 0, {}, {}, {}, INT32_MAX, -1};
    add_tile(rows, a.tiles[item / lanes(a)], lane % slices(a));
    return rows;
}

// largest, total: [rows]; weighted: [rows][head_dim]
struct Partial {
    float* weighted;
    float* largest;
    float* total;
};

INLINE Partial partial_at(float* memory, int head_dim) {
    return {memory, memory + ATTENTION_ROWS * head_dim, memory + ATTENTION_ROWS * (head_dim + 1)};
}

// The part of a partition that a tile sees: positions low up to high, and the blocks from `begin` on that hold them.
struct Span {
    int start, low, high, begin;
    HeadBlock blocks[PARTITION_TOKENS / BLOCK_TOKENS];

    int count() const { return (high - begin + BLOCK_TOKENS - 1) / BLOCK_TOKENS; }
};

INLINE void find_span(const Rows& rows, int partition, Span& span) {
    const Attention& a = rows.attention;
    const int start = partition * PARTITION_TOKENS, end = start + PARTITION_TOKENS;
    span.start = start;
    span.low = rows.lowest > start ? rows.lowest : start;
    span.high = rows.highest + 1 < end ? rows.highest + 1 : end;
    span.begin = span.low / BLOCK_TOKENS * BLOCK_TOKENS;
    const int32_t* table = rows.table + span.begin / BLOCK_TOKENS;
    for (int b = 0; b < span.count(); ++b) span.blocks[b] = head_block(a.cache, table[b], rows.kv_head);
}

// Queries as a kind's scores want them.
struct Queries {
    const float* scaled;        // [rows][head_dim], of a float cache
    const int8_t* digits[2];    // upper, lower: [rows][head_dim]
    const float* scales;        // of the lower digits, [rows]
    const int32_t* offsets[2];  // what the sums of the digits' products start with, [rows]
};

INLINE Queries skip_rows(const Queries& q, int rows, int head_dim) {
    return {q.scaled + rows * head_dim,
            {q.digits[0] + rows * head_dim, q.digits[1] + rows * head_dim},
            q.scales + rows,
            {q.offsets[0] + rows, q.offsets[1] + rows}};
}

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
INLINE void score_floats(const HeadBlock* blocks, const Queries& q, int head_dim, float* scores) {
    F sum[ROWS][BLOCKS];
    UNROLLED(r, ROWS)
        UNROLLED(b, BLOCKS) sum[r][b] = zero();
    for (int d = 0; d < head_dim; d += 2) {
        UNROLLED(b, BLOCKS) {
            F even, odd;
            load_keys<KIND>(blocks[b].keys, d, even, odd);
            UNROLLED(r, ROWS) {
                sum[r][b] = mul_add(even, set1(q.scaled[r * head_dim + d]), sum[r][b]);
                sum[r][b] = mul_add(odd, set1(q.scaled[r * head_dim + d + 1]), sum[r][b]);
            }
        }
    }
    UNROLLED(b, BLOCKS) {
        UNROLLED(r, ROWS) store(scores + r * PARTITION_TOKENS + b * BLOCK_TOKENS, sum[r][b]);
    }
}

template <int ROWS, int BLOCKS>
INLINE void score_integers(const HeadBlock* blocks, const Queries& q, int head_dim, float* scores) {
    I sum[ROWS][BLOCKS];
    for (int digit = 0; digit < 2; ++digit) {
        UNROLLED(r, ROWS) {
            const I offset = set1_int(q.offsets[digit][r]);
            UNROLLED(b, BLOCKS) sum[r][b] = digit ? add_int(shift_left(sum[r][b], DIGIT_BITS), offset) : offset;
        }
        const int8_t* digits = q.digits[digit];
        for (int d = 0; d < head_dim; d += 4) {
            I keys[BLOCKS];
            UNROLLED(b, BLOCKS) keys[b] = load_int(blocks[b].keys + d * BLOCK_TOKENS);
            UNROLLED(r, ROWS) {
                const I four = broadcast4(digits + r * head_dim + d);
                UNROLLED(b, BLOCKS) sum[r][b] = dot4(sum[r][b], keys[b], four);
            }
        }
    }
    UNROLLED(b, BLOCKS) {
        const F scales = load(blocks[b].key_scales);
        UNROLLED(r, ROWS) {
            const F score = mul(mul(to_float(sum[r][b]), scales), set1(q.scales[r]));
            store(scores + r * PARTITION_TOKENS + b * BLOCK_TOKENS, score);
        }
    }
}

template <CacheKind KIND, int ROWS, int BLOCKS>
void score_blocks(const HeadBlock* blocks, const Queries& q, int head_dim, float* scores) {
    if constexpr (KIND == CACHE_INT8) {
        score_integers<ROWS, BLOCKS>(blocks, q, head_dim, scores);
    } else {
        score_floats<KIND, ROWS, BLOCKS>(blocks, q, head_dim, scores);
    }
}

template <CacheKind KIND, int BLOCKS, int ROWS = ATTENTION_CHUNK>
INLINE void score_rows(const HeadBlock* blocks, Queries q, int rows, int head_dim, float* scores) {
    for (; rows >= ROWS; rows -= ROWS, q = skip_rows(q, ROWS, head_dim), scores += ROWS * PARTITION_TOKENS) {
        score_blocks<KIND, ROWS, BLOCKS>(blocks, q, head_dim, scores);
    }
    if constexpr (ROWS > 1) score_rows<KIND, BLOCKS, ROWS - 1>(blocks, q, rows, head_dim, scores);
}

// Fetch what will be wanted soon: a block's values, when the scores are there; then the keys of the next head, which lie
// behind them, or after the last head the keys of the sequence that follows.
template <CacheKind KIND>
INLINE void fetch_ahead(const Rows& rows, const Span& span, int begin, int count) {
    const Cache& cache = rows.attention.cache;
    const int plane = cache.head_dim * BLOCK_TOKENS * element_bytes(KIND);
    const int scales = KIND == CACHE_INT8 ? 2 * BLOCK_TOKENS * static_cast<int>(sizeof(float)) : 0;
    const bool last = rows.kv_head + 1 == cache.kv_heads;
    for (int b = begin; b < begin + count; ++b) {
        const uint8_t* values = span.blocks[b].values;
        for (int at = 0; at < plane + scales; at += 64) __builtin_prefetch(values + at);
        const uint8_t* keys = values + plane + scales;
        if (last) {
            if (!rows.next_table) continue;
            const int32_t block = rows.next_table[span.begin / BLOCK_TOKENS + b];
            if (block < 0) continue;
            keys = head_block(cache, block, 0).keys;
        }
        for (int at = 0; at < plane; at += 64) __builtin_prefetch(keys + at, 0, 2);
    }
}

template <CacheKind KIND>
void score(const Rows& rows, const Span& span, const Queries& q, float* scores) {
    const int head_dim = rows.attention.cache.head_dim;
    for (int block = 0; block < span.count();) {
        const HeadBlock* blocks = span.blocks + block;
        float* to = scores + span.begin - span.start + block * BLOCK_TOKENS;
        const int count = span.count() - block < SCORE_BLOCKS ? 1 : SCORE_BLOCKS;
        fetch_ahead<KIND>(rows, span, block, count);
        if (count == SCORE_BLOCKS) {
            score_rows<KIND, SCORE_BLOCKS>(blocks, q, rows.count, head_dim, to);
        } else {
            score_rows<KIND, 1>(blocks, q, rows.count, head_dim, to);
        }
        block += count;
    }
}

// The positions that a row sees, counted from the partition's start.
struct Seen {
    int low, high;

    bool whole_block(int at) const { return low <= at && at + BLOCK_TOKENS <= high; }
};

INLINE Seen seen_by(const Rows& rows, const Span& span, int row) {
    return {rows.first[row] - span.start, rows.last[row] + 1 - span.start};
}

// Each row's largest score; what a row does not see becomes -inf. Where a row sees nothing the largest stays finite:
// -inf - -inf would be NaN. A pass is made over all rows before the next one begins, so that its latencies overlap.
INLINE void find_largest(const Rows& rows, const Span& span, float* scores, float* largest) {
    const float softcap = rows.attention.softcap;
    const int begin = span.begin - span.start, end = span.high - span.start;
    for (int r = 0; r < rows.count; ++r, scores += PARTITION_TOKENS) {
        const Seen seen = seen_by(rows, span, r);
        F most = set1(LOWEST);
        for (int i = begin; i < end; i += BLOCK_TOKENS) {
            F value = load(scores + i);
            if (softcap != 0.0f) {
                value = mul(hyperbolic_tangent(div(value, set1(softcap))), set1(softcap));
                store(scores + i, value);
            }
            if (!seen.whole_block(i)) {
                value = keep_between(value, seen.low - i, seen.high - i, set1(-__builtin_huge_valf()));
                store(scores + i, value);
            }
            most = max(most, value);
        }
        largest[r] = max_lanes(most);
    }
}

// Turn scores into weights; what a row does not see gets an exact 0. Of an int8 cache the weights take the values'
// scales in, and `most` becomes each row's largest one.
template <CacheKind KIND>
INLINE void soften(const Rows& rows, const Span& span, float* scores, const Partial& partial, float* most) {
    const int begin = span.begin - span.start;
    for (int r = 0; r < rows.count; ++r, scores += PARTITION_TOKENS) {
        const Seen seen = seen_by(rows, span, r);
        const F largest = set1(partial.largest[r]);
        F total = zero();
        I bits = zero_int();
        for (int b = 0; b < span.count(); ++b) {
            const int i = begin + b * BLOCK_TOKENS;
            F weight = exponential(sub(load(scores + i), largest));
            total = add(total, weight);
            if constexpr (KIND == CACHE_INT8) {
                weight = mul(weight, load(span.blocks[b].value_scales));
                // The scales of what the row does not see may be anything.
                if (!seen.whole_block(i)) weight = keep_between(weight, seen.low - i, seen.high - i, zero());
                bits = max_int(bits, and_int(as_int(weight), set1_int(0x7fffffff)));
            }
            store(scores + i, weight);
        }
        partial.total[r] = sum_lanes(total);
        if constexpr (KIND == CACHE_INT8) {
            const int32_t largest_bits = max_lanes_int(bits);
            memcpy(most + r, &largest_bits, 4);
        }
    }
}

// Weights as digits, upper and lower [rows][256]. `units` comes with each row's largest weight and becomes the lower
// digits' unit. As in quantize_query: what is not finite stays so by the unit.
INLINE void quantize_weights_of(const Span& span, int rows, const float* weights, uint8_t* const* digits,
                                float* units) {
    const int begin = span.begin - span.start, end = begin + span.count() * BLOCK_TOKENS;
    int8_t* upper = reinterpret_cast<int8_t*>(digits[0]);
    int8_t* lower = reinterpret_cast<int8_t*>(digits[1]);
    for (int r = 0; r < rows; ++r) {
        const float inverse = DIGITS_MOST / units[r];
        const F factor = set1(inverse < __builtin_huge_valf() ? inverse : 0.0f);
        for (int i = r * PARTITION_TOKENS + begin; i < r * PARTITION_TOKENS + end; i += BLOCK_TOKENS) {
            const I whole = round_int(mul(load(weights + i), factor));
            store_int8(upper + i, shift_right(whole, DIGIT_BITS));
            store_int8(lower + i, and_int(whole, set1_int((1 << DIGIT_BITS) - 1)));
        }
        units[r] = units[r] / DIGITS_MOST;
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
INLINE void weigh_floats(const Span& span, const float* weights, int head_dim, int d, float* weighted) {
    F sum[ROWS][VECTORS];
    UNROLLED(r, ROWS)
        UNROLLED(v, VECTORS) sum[r][v] = zero();
    for (int block = span.begin; block < span.high; block += BLOCK_TOKENS) {
        const uint8_t* values = span.blocks[(block - span.begin) / BLOCK_TOKENS].values;
        const float* at = weights + block - span.start;
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

// Weights as a kind's sums want them.
struct Weights {
    const float* floats;       // [rows][256], of a float cache
    const uint8_t* digits[2];  // upper, lower: [rows][256]
    const float* units;        // of the lower digits, [rows]
};

INLINE Weights skip_rows(const Weights& w, int rows) {
    return {w.floats + rows * PARTITION_TOKENS,
            {w.digits[0] + rows * PARTITION_TOKENS, w.digits[1] + rows * PARTITION_TOKENS},
            w.units + rows};
}

template <int ROWS, int VECTORS>
INLINE void weigh_integers(const Span& span, const Weights& weights, int head_dim, int d, float* weighted) {
    I sum[ROWS][VECTORS];
    for (int digit = 0; digit < 2; ++digit) {
        UNROLLED(r, ROWS)
            UNROLLED(v, VECTORS) sum[r][v] = digit ? shift_left(sum[r][v], DIGIT_BITS) : zero_int();
        const uint8_t* at = weights.digits[digit] + span.begin - span.start;
        for (int b = 0; b < span.count(); ++b, at += BLOCK_TOKENS) {
            const uint8_t* values = span.blocks[b].values + d * 4;
            for (int t = 0; t < BLOCK_TOKENS; t += 4, values += head_dim * 4) {
                I four[VECTORS];
                UNROLLED(v, VECTORS) four[v] = load_int(values + v * 64);
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

template <CacheKind KIND, int ROWS, int VECTORS>
void weigh_values(const Span& span, const Weights& weights, int head_dim, int d, float* weighted) {
    if constexpr (KIND == CACHE_INT8) {
        weigh_integers<ROWS, VECTORS>(span, weights, head_dim, d, weighted);
    } else {
        weigh_floats<KIND, ROWS, VECTORS>(span, weights.floats, head_dim, d, weighted);
    }
}

template <CacheKind KIND, int VECTORS, int ROWS = ATTENTION_CHUNK>
INLINE void weigh_rows(const Span& span, int count, Weights weights, int head_dim, int d, float* weighted) {
    for (; count >= ROWS; count -= ROWS, weights = skip_rows(weights, ROWS), weighted += ROWS * head_dim) {
        weigh_values<KIND, ROWS, VECTORS>(span, weights, head_dim, d, weighted);
    }
    if constexpr (ROWS > 1) weigh_rows<KIND, VECTORS, ROWS - 1>(span, count, weights, head_dim, d, weighted);
}

// A thread's memory, as attention_scratch_floats() counts it.
struct Scratch {
    float* scores;      // [rows][256]
    float* q;           // [rows][head_dim]; of an int8 cache the digits
    float* q_scales;    // [rows]
    int32_t* q_offsets;  // [2][rows]
    float* units;       // [rows]
    uint8_t* digits;    // [2][rows][256]
    Partial merged, next;
};

INLINE Scratch scratch_of(const Attention& a, int thread) {
    const int d = a.cache.head_dim;
    float* scores = a.scratch + thread * a.scratch_stride;
    float* q = scores + ATTENTION_ROWS * PARTITION_TOKENS;
    float* numbers = q + ATTENTION_ROWS * d;
    float* digits = numbers + 4 * ATTENTION_ROWS;
    float* merged = digits + ATTENTION_ROWS * PARTITION_TOKENS / 2;
    return {scores,
            q,
            numbers,
            reinterpret_cast<int32_t*>(numbers + ATTENTION_ROWS),
            numbers + 3 * ATTENTION_ROWS,
            reinterpret_cast<uint8_t*>(digits),
            partial_at(merged, d),
            partial_at(merged + ATTENTION_ROWS * (d + 2), d)};
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
    const float inverse = QUERY_MOST / largest;
    // Not finite: the unit is not, and so the scores are not. Too small for an inverse: 0.
    const bool empty = !(largest < __builtin_huge_valf()) || !(inverse < __builtin_huge_valf());
    int8_t* upper = reinterpret_cast<int8_t*>(to.q) + row * head_dim;
    int8_t* lower = upper + ATTENTION_ROWS * head_dim;
    I uppers = zero_int(), lowers = zero_int();
    for (int d = 0; d < head_dim; d += 16) {
        const I whole = empty ? zero_int() : round_int(mul(mul(load(query + d), factor), set1(inverse)));
        const I high = shift_right(add_int(whole, set1_int(1 << (DIGIT_BITS - 1))), DIGIT_BITS);
        // whole - high * 128: adding changes it by a multiple of 256, and one byte is kept
        const I low = add_int(whole, shift_left(high, DIGIT_BITS));
        const I centred = shift_right(shift_left(low, 24), 24);
        store_int8(upper + d, high);
        store_int8(lower + d, centred);
        uppers = add_int(uppers, high);
        lowers = add_int(lowers, centred);
    }
    to.q_scales[row] = largest / QUERY_MOST;
    to.q_offsets[row] = WEIGHTS_LESS_128 ? 0 : -128 * sum_lanes_int(uppers);
    to.q_offsets[ATTENTION_ROWS + row] = WEIGHTS_LESS_128 ? 0 : -128 * sum_lanes_int(lowers);
}

template <CacheKind KIND>
INLINE Queries prepare_queries(const Rows& rows, const Scratch& scratch) {
    const int head_dim = rows.attention.cache.head_dim;
    const float scale = rows.attention.scale;
    for (int r = 0; r < rows.count; ++r) {
        const float* from = rows.query(r);
        if constexpr (KIND == CACHE_INT8) {
            quantize_query(from, scale, head_dim, r, scratch);
        } else {
            for (int d = 0; d < head_dim; d += 16)
                store(scratch.q + r * head_dim + d, mul(load(from + d), set1(scale)));
        }
    }
    const int8_t* digits = reinterpret_cast<const int8_t*>(scratch.q);
    return {scratch.q,
            {digits, digits + ATTENTION_ROWS * head_dim},
            scratch.q_scales,
            {scratch.q_offsets, scratch.q_offsets + ATTENTION_ROWS}};
}

template <CacheKind KIND>
void attend_partition(const Rows& rows, int partition, const Queries& q, const Scratch& scratch,
                      const Partial& partial) {
    const int head_dim = rows.attention.cache.head_dim;
    Span span;
    find_span(rows, partition, span);
    score<KIND>(rows, span, q, scratch.scores);
    uint8_t* const digits[2] = {scratch.digits, scratch.digits + ATTENTION_ROWS * PARTITION_TOKENS};
    find_largest(rows, span, scratch.scores, partial.largest);
    soften<KIND>(rows, span, scratch.scores, partial, scratch.units);
    if constexpr (KIND == CACHE_INT8) quantize_weights_of(span, rows.count, scratch.scores, digits, scratch.units);
    const Weights weights{scratch.scores, {digits[0], digits[1]}, scratch.units};
    int d = 0;
    for (; d + 16 * VALUE_VECTORS <= head_dim; d += 16 * VALUE_VECTORS) {
        weigh_rows<KIND, VALUE_VECTORS>(span, rows.count, weights, head_dim, d, partial.weighted);
    }
    for (; d < head_dim; d += 16) weigh_rows<KIND, 1>(span, rows.count, weights, head_dim, d, partial.weighted);
}

// left = left merged with right, which follows it
INLINE void merge(const Partial& left, const Partial& right, int rows, int head_dim) {
    for (int r = 0; r < rows; ++r) {
        const F l = set1(left.largest[r]), n = set1(right.largest[r]), largest = max(l, n);
        const F keep = exponential(sub(l, largest)), gain = exponential(sub(n, largest));
        store_first(left.largest + r, largest, 1);
        store_first(left.total + r, add(mul(set1(left.total[r]), keep), mul(set1(right.total[r]), gain)), 1);
        for (int d = r * head_dim; d < (r + 1) * head_dim; d += 16) {
            store(left.weighted + d, add(mul(load(left.weighted + d), keep), mul(load(right.weighted + d), gain)));
        }
    }
}

INLINE void finish(const Rows& rows, const Partial& merged) {
    const int head_dim = rows.attention.cache.head_dim;
    for (int r = 0; r < rows.count; ++r) {
        const F total = max(set1(TINY), set1(merged.total[r]));
        float* out = rows.output(r);
        for (int d = 0; d < head_dim; d += 16) store(out + d, div(load(merged.weighted + r * head_dim + d), total));
    }
}

INLINE void finish_empty(const Rows& rows) {
    for (int r = 0; r < rows.count; ++r) {
        memset(rows.output(r), 0, static_cast<size_t>(rows.attention.cache.head_dim) * sizeof(float));
    }
}

INLINE Partial stored_partial(const Attention& a, int item, int partition) {
    const int64_t each = ATTENTION_ROWS * (a.cache.head_dim + 2);
    return partial_at(a.partials + (static_cast<int64_t>(item) * a.stored_partitions + partition) * each,
                      a.cache.head_dim);
}

// One partition for several sequences that share its blocks: their rows are attended as one tile's.
template <CacheKind KIND>
void run_shared(void* pointer, int index, int thread) {
    const Attention& a = *static_cast<const Attention*>(pointer);
    // Those that read the same keys and values come after one another.
    const int lane = index / a.num_shared, slice = lane % slices(a), head_dim = a.cache.head_dim;
    const SharedTiles& shared = a.shared[index % a.num_shared];
    const Scratch scratch = scratch_of(a, thread);
    for (int next = shared.first; next < shared.first + shared.count;) {
        Rows rows{a, nullptr, nullptr, lane / slices(a), 0, {}, {}, {}, INT32_MAX, -1};
        const int begin = next;
        while (next < shared.first + shared.count) {
            const QueryTile& tile = a.tiles[a.shared_tiles[next]];
            if (rows.count + rows_in(a, tile, slice) > ATTENTION_ROWS) break;
            add_tile(rows, tile, slice);
            ++next;
        }
        attend_partition<KIND>(rows, shared.partition, prepare_queries<KIND>(rows, scratch), scratch, scratch.next);
        for (int tile = begin, row = 0; tile < next; ++tile) {
            const int item = a.shared_tiles[tile] * lanes(a) + lane;
            const Partial to = stored_partial(a, item, shared.partition);
            const int count = rows_in(a, a.tiles[a.shared_tiles[tile]], slice);
            memcpy(to.weighted, scratch.next.weighted + row * head_dim,
                   static_cast<size_t>(count) * static_cast<size_t>(head_dim) * sizeof(float));
            memcpy(to.largest, scratch.next.largest + row, static_cast<size_t>(count) * sizeof(float));
            memcpy(to.total, scratch.next.total + row, static_cast<size_t>(count) * sizeof(float));
            row += count;
        }
    }
}

// The rows' results are written last, but from memory that is not at hand; the next head's queries follow this one's.
INLINE void fetch_rows(const Rows& rows) {
    const int head_dim = rows.attention.cache.head_dim;
    const int next = rows.attention.heads / rows.attention.cache.kv_heads * head_dim;
    const bool last = rows.kv_head + 1 == rows.attention.cache.kv_heads;
    for (int r = 0; r < rows.count; ++r) {
        for (int d = 0; d < head_dim; d += 16) {
            __builtin_prefetch(rows.output(r) + d, 1);
            if (!last) __builtin_prefetch(rows.query(r) + next + d);
        }
    }
}

template <CacheKind KIND>
void attend_whole(const Attention& a, int item, int thread, const int32_t* next_table) {
    Rows rows = rows_of(a, item);
    rows.next_table = next_table;
    if (rows.lowest > rows.highest) return finish_empty(rows);
    fetch_rows(rows);
    const Scratch scratch = scratch_of(a, thread);
    const int shared = a.tiles[item / lanes(a)].shared, last = rows.highest / PARTITION_TOKENS;
    const int first = rows.lowest / PARTITION_TOKENS;
    Partial merged = scratch.merged;
    if (shared) {
        merged = stored_partial(a, item, 0);
        for (int p = 1; p < shared; ++p) merge(merged, stored_partial(a, item, p), rows.count, a.cache.head_dim);
    }
    if (shared <= last) {
        const Queries q = prepare_queries<KIND>(rows, scratch);
        int partition = shared ? shared : first;
        if (!shared) attend_partition<KIND>(rows, partition++, q, scratch, merged);
        for (; partition <= last; ++partition) {
            attend_partition<KIND>(rows, partition, q, scratch, scratch.next);
            merge(merged, scratch.next, rows.count, a.cache.head_dim);
        }
    }
    finish(rows, merged);
}

template <CacheKind KIND>
void run_whole(void* pointer, int item, int thread) {
    attend_whole<KIND>(*static_cast<const Attention*>(pointer), item, thread, nullptr);
}

struct Tiles {
    const Attention& attention;
    int threads;
};

// All heads of a tile: their keys and values lie next to each other.
template <CacheKind KIND>
void run_tile(void* pointer, int tile, int thread) {
    const Tiles& tiles = *static_cast<const Tiles*>(pointer);
    const Attention& a = tiles.attention;
    const int next = tile + tiles.threads, row = a.tiles[tile].row;
    const bool other = next < a.num_tiles && a.tiles[next].row != row;
    const int32_t* next_table = other ? a.block_tables + a.tiles[next].row * a.max_blocks : nullptr;
    for (int lane = 0; lane < lanes(a); ++lane) attend_whole<KIND>(a, tile * lanes(a) + lane, thread, next_table);
}

template <CacheKind KIND>
void run_part(void* pointer, int index, int thread) {
    const Attention& a = *static_cast<const Attention*>(pointer);
    const int item = index / a.stored_partitions, partition = index % a.stored_partitions;
    if (partition < a.tiles[item / lanes(a)].shared) return;
    const Rows rows = rows_of(a, item);
    if (rows.lowest > rows.highest) return;
    if (partition < rows.lowest / PARTITION_TOKENS || partition > rows.highest / PARTITION_TOKENS) return;
    const Scratch scratch = scratch_of(a, thread);
    attend_partition<KIND>(rows, partition, prepare_queries<KIND>(rows, scratch), scratch,
                           stored_partial(a, item, partition));
}

void run_merge(void* pointer, int item, int) {
    const Attention& a = *static_cast<const Attention*>(pointer);
    const Rows rows = rows_of(a, item);
    if (rows.lowest > rows.highest) return finish_empty(rows);
    const int first = rows.lowest / PARTITION_TOKENS, last = rows.highest / PARTITION_TOKENS;
    const Partial merged = stored_partial(a, item, first);
    for (int partition = first + 1; partition <= last; ++partition) {
        merge(merged, stored_partial(a, item, partition), rows.count, a.cache.head_dim);
    }
    finish(rows, merged);
}

constexpr int TILES_PER_THREAD = 8;

template <CacheKind KIND>
void run(const Parallel& parallel, Attention attention) {
    const int items = attention.num_tiles * lanes(attention);
    if (attention.num_shared)
        parallel.run(parallel.pool, run_shared<KIND>, &attention, attention.num_shared * lanes(attention));
    if (!attention.split) {
        // A tile is one piece of work where that leaves enough pieces.
        Tiles tiles{attention, parallel.threads};
        if (attention.num_tiles >= TILES_PER_THREAD * parallel.threads)
            return parallel.run(parallel.pool, run_tile<KIND>, &tiles, attention.num_tiles);
        return parallel.run(parallel.pool, run_whole<KIND>, &attention, items);
    }
    parallel.run(parallel.pool, run_part<KIND>, &attention, items * attention.stored_partitions);
    parallel.run(parallel.pool, run_merge, &attention, items);
}

}  // namespace

void attention(const Parallel& parallel, const Attention& attention) {
    switch (attention.cache.kind) {
        case CACHE_F32: return run<CACHE_F32>(parallel, attention);
        case CACHE_BF16: return run<CACHE_BF16>(parallel, attention);
        default: return run<CACHE_INT8>(parallel, attention);
    }
}

}  // namespace octavo::OCTAVO_VARIANT
