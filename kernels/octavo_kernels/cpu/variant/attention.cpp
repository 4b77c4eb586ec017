// Paged attention over block tables, for decode rows and prefill chunks mixed in one call.
//
// A context is cut into partitions of 256 tokens counted from position 0. Each gives (largest score, sum of the
// weights, weighted values), and partitions merge in order, as in FlashAttention's online softmax (Dao et al., 2022). A
// query's numbers depend on its own position only: what others in its tile see in addition enters as an exact zero.
#include "cache.hpp"
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr float LOWEST = -3.402823466e38f, TINY = 1.17549435e-38f;

// The rows (query, head) that one work item computes, and the positions that they see.
struct Rows {
    const Attention& attention;
    int sequence, begin, kv_head, first_head, heads, count;
    int first[ATTENTION_ROWS], last[ATTENTION_ROWS];
    int lowest, highest;  // of all rows; nobody sees anything if lowest > highest

    const float* query(int row) const { return attention.q + offset(row); }
    float* output(int row) const { return attention.out + offset(row); }
    int64_t offset(int row) const {
        const int64_t token = begin + row / heads;
        return (token * attention.heads + first_head + row % heads) * attention.cache.head_dim;
    }
};

// A group of more than 16 heads is cut into slices.
INLINE int slices(const Attention& a) { return (a.heads / a.cache.kv_heads + ATTENTION_ROWS - 1) / ATTENTION_ROWS; }

INLINE Rows rows_of(const Attention& a, int item) {
    const int parts = slices(a), per_tile = a.cache.kv_heads * parts, group = a.heads / a.cache.kv_heads;
    const QueryTile& tile = a.tiles[item / per_tile];
    const int kv_head = item % per_tile / parts, skipped = item % parts * ATTENTION_ROWS;
    const int heads = group - skipped < ATTENTION_ROWS ? group - skipped : ATTENTION_ROWS;
    Rows rows{a, tile.row, tile.begin, kv_head, kv_head * group + skipped, heads, tile.count * heads, {}, {}, 0, -1};
    rows.lowest = INT32_MAX;
    const int context = a.context_lengths[tile.row];
    for (int r = 0; r < rows.count; ++r) {
        const int position = a.positions[tile.begin + r / heads];
        rows.last[r] = position < context ? position : context - 1;
        rows.first[r] = a.window && rows.last[r] >= a.window ? rows.last[r] - a.window + 1 : 0;
        if (rows.first[r] < rows.lowest) rows.lowest = rows.first[r];
        if (rows.last[r] > rows.highest) rows.highest = rows.last[r];
    }
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

// The part of a partition that a tile sees: positions low up to high, of the blocks from low / 16 on.
struct Span {
    int start, low, high;
};

INLINE Span span_of(const Rows& rows, int partition) {
    const int start = partition * PARTITION_TOKENS, end = start + PARTITION_TOKENS;
    return {start, rows.lowest > start ? rows.lowest : start, rows.highest + 1 < end ? rows.highest + 1 : end};
}

INLINE HeadBlock block_at(const Rows& rows, int position) {
    const Attention& a = rows.attention;
    return head_block(a.cache, a.block_tables[rows.sequence * a.max_blocks + position / BLOCK_TOKENS], rows.kv_head);
}

// Two dimensions of 16 keys.
template <CacheKind KIND>
INLINE void load_keys(const uint8_t* keys, int d, F& even, F& odd) {
    if constexpr (KIND == CACHE_F32) {
        even = load(reinterpret_cast<const float*>(keys) + d * BLOCK_TOKENS);
        odd = load(reinterpret_cast<const float*>(keys) + (d + 1) * BLOCK_TOKENS);
    } else if constexpr (KIND == CACHE_BF16) {
        const I both = load_int(keys + d * BLOCK_TOKENS * 2);
        even = as_float(shift_left(both, 16));
        odd = as_float(and_int(both, set1_int(static_cast<int32_t>(0xffff0000u))));
    } else {
        even = load_int8(reinterpret_cast<const int8_t*>(keys) + d * BLOCK_TOKENS);
        odd = load_int8(reinterpret_cast<const int8_t*>(keys) + (d + 1) * BLOCK_TOKENS);
    }
}

// Scores of ROWS queries over BLOCKS blocks; q: [ROWS][head_dim], scores: [ROWS][256].
template <CacheKind KIND, int ROWS, int BLOCKS>
void score_blocks(const HeadBlock* blocks, const float* q, int head_dim, float* scores) {
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
        UNROLLED(r, ROWS) {
            if constexpr (KIND == CACHE_INT8) sum[r][b] = mul(sum[r][b], load(blocks[b].key_scales));
            store(scores + r * PARTITION_TOKENS + b * BLOCK_TOKENS, sum[r][b]);
        }
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
void score(const Rows& rows, const Span& span, const float* q, float* scores) {
    const int head_dim = rows.attention.cache.head_dim;
    int position = span.low / BLOCK_TOKENS * BLOCK_TOKENS;
    while (position < span.high) {
        const int left = (span.high - position + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
        HeadBlock blocks[SCORE_BLOCKS];
        const int count = left < SCORE_BLOCKS ? 1 : SCORE_BLOCKS;
        for (int b = 0; b < count; ++b) blocks[b] = block_at(rows, position + b * BLOCK_TOKENS);
        float* to = scores + position - span.start;
        if (count == SCORE_BLOCKS) {
            score_rows<KIND, SCORE_BLOCKS>(blocks, q, rows.count, head_dim, to);
        } else {
            score_rows<KIND, 1>(blocks, q, rows.count, head_dim, to);
        }
        position += count * BLOCK_TOKENS;
    }
}

// Turn one row's scores into weights; what the row does not see gets an exact 0.
INLINE void soften(const Rows& rows, const Span& span, int row, float* scores, const Partial& partial) {
    const float softcap = rows.attention.softcap;
    const int begin = span.low / BLOCK_TOKENS * BLOCK_TOKENS - span.start, end = span.high - span.start;
    const int low = rows.first[row] - span.start, high = rows.last[row] + 1 - span.start;
    F most = set1(LOWEST);
    for (int i = begin; i < end; i += BLOCK_TOKENS) {
        F value = load(scores + i);
        if (softcap != 0.0f) value = mul(hyperbolic_tangent(div(value, set1(softcap))), set1(softcap));
        value = keep_between(value, low - i, high - i, set1(-__builtin_huge_valf()));
        store(scores + i, value);
        most = max(most, value);
    }
    // Where a row sees nothing the largest stays finite: -inf - -inf would be NaN.
    const float largest = max_lanes(most);
    F total = zero();
    for (int i = begin; i < end; i += BLOCK_TOKENS) {
        const F weight = exponential(sub(load(scores + i), set1(largest)));
        store(scores + i, weight);
        total = add(total, weight);
    }
    partial.largest[row] = largest;
    partial.total[row] = sum_lanes(total);
}

// Fold the values' scales of an int8 cache into the weights.
INLINE void scale_weights(const Rows& rows, const Span& span, float* scores) {
    for (int position = span.low / BLOCK_TOKENS * BLOCK_TOKENS; position < span.high; position += BLOCK_TOKENS) {
        const F scales = load(block_at(rows, position).value_scales);
        for (int r = 0; r < rows.count; ++r) {
            float* at = scores + r * PARTITION_TOKENS + position - span.start;
            store(at, mul(load(at), scales));
        }
    }
}

// 16 dimensions of an even token's value, and of the next one's.
template <CacheKind KIND>
INLINE void load_values(const uint8_t* values, int token, int d, int head_dim, F& even, F& odd) {
    if constexpr (KIND == CACHE_F32) {
        even = load(reinterpret_cast<const float*>(values) + token * head_dim + d);
        odd = load(reinterpret_cast<const float*>(values) + (token + 1) * head_dim + d);
    } else if constexpr (KIND == CACHE_BF16) {
        const I both = load_int(values + (token / 2 * head_dim + d) * 4);
        even = as_float(shift_left(both, 16));
        odd = as_float(and_int(both, set1_int(static_cast<int32_t>(0xffff0000u))));
    } else {
        even = load_int8(reinterpret_cast<const int8_t*>(values) + token * head_dim + d);
        odd = load_int8(reinterpret_cast<const int8_t*>(values) + (token + 1) * head_dim + d);
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
void weigh_values(const Rows& rows, const Span& span, const float* weights, int d, float* weighted) {
    const int head_dim = rows.attention.cache.head_dim;
    F sum[ROWS][VECTORS];
    UNROLLED(r, ROWS)
        UNROLLED(v, VECTORS) sum[r][v] = zero();
    for (int block = span.low / BLOCK_TOKENS * BLOCK_TOKENS; block < span.high; block += BLOCK_TOKENS) {
        const uint8_t* values = block_at(rows, block).values;
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

template <CacheKind KIND, int VECTORS, int ROWS = ATTENTION_CHUNK>
INLINE void weigh_rows(const Rows& rows, const Span& span, int count, const float* weights, int d, float* weighted) {
    const int head_dim = rows.attention.cache.head_dim;
    for (; count >= ROWS; count -= ROWS, weights += ROWS * PARTITION_TOKENS, weighted += ROWS * head_dim) {
        weigh_values<KIND, ROWS, VECTORS>(rows, span, weights, d, weighted);
    }
    if constexpr (ROWS > 1) weigh_rows<KIND, VECTORS, ROWS - 1>(rows, span, count, weights, d, weighted);
}

template <CacheKind KIND>
void attend_partition(const Rows& rows, int partition, const float* q, float* scores, const Partial& partial) {
    const Span span = span_of(rows, partition);
    score<KIND>(rows, span, q, scores);
    for (int r = 0; r < rows.count; ++r) soften(rows, span, r, scores + r * PARTITION_TOKENS, partial);
    if constexpr (KIND == CACHE_INT8) scale_weights(rows, span, scores);
    int d = 0;
    const int head_dim = rows.attention.cache.head_dim;
    for (; d + 16 * VALUE_VECTORS <= head_dim; d += 16 * VALUE_VECTORS) {
        weigh_rows<KIND, VALUE_VECTORS>(rows, span, rows.count, scores, d, partial.weighted);
    }
    for (; d < head_dim; d += 16) weigh_rows<KIND, 1>(rows, span, rows.count, scores, d, partial.weighted);
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

// A thread's memory, as attention_scratch_floats() counts it.
struct Scratch {
    float* q;
    float* scores;
    Partial merged, next;
};

INLINE Scratch scratch_of(const Attention& a, int thread) {
    const int d = a.cache.head_dim;
    float* at = a.scratch + thread * a.scratch_stride;
    float* scores = at + ATTENTION_ROWS * d;
    float* merged = scores + ATTENTION_ROWS * PARTITION_TOKENS;
    return {at, scores, partial_at(merged, d), partial_at(merged + ATTENTION_ROWS * (d + 2), d)};
}

INLINE void scale_queries(const Rows& rows, float* q) {
    const int head_dim = rows.attention.cache.head_dim;
    for (int r = 0; r < rows.count; ++r) {
        const float* from = rows.query(r);
        for (int d = 0; d < head_dim; d += 16) {
            store(q + r * head_dim + d, mul(load(from + d), set1(rows.attention.scale)));
        }
    }
}

template <CacheKind KIND>
void run_whole(void* pointer, int item, int thread) {
    const Attention& a = *static_cast<const Attention*>(pointer);
    const Rows rows = rows_of(a, item);
    if (rows.lowest > rows.highest) return finish_empty(rows);
    const Scratch scratch = scratch_of(a, thread);
    scale_queries(rows, scratch.q);
    const int first = rows.lowest / PARTITION_TOKENS, last = rows.highest / PARTITION_TOKENS;
    attend_partition<KIND>(rows, first, scratch.q, scratch.scores, scratch.merged);
    for (int partition = first + 1; partition <= last; ++partition) {
        attend_partition<KIND>(rows, partition, scratch.q, scratch.scores, scratch.next);
        merge(scratch.merged, scratch.next, rows.count, a.cache.head_dim);
    }
    finish(rows, scratch.merged);
}

INLINE Partial stored_partial(const Attention& a, int item, int partition) {
    const int64_t each = ATTENTION_ROWS * (a.cache.head_dim + 2);
    return partial_at(a.partials + (static_cast<int64_t>(item) * a.max_partitions + partition) * each,
                      a.cache.head_dim);
}

template <CacheKind KIND>
void run_part(void* pointer, int index, int thread) {
    const Attention& a = *static_cast<const Attention*>(pointer);
    const int item = index / a.max_partitions, partition = index % a.max_partitions;
    const Rows rows = rows_of(a, item);
    if (rows.lowest > rows.highest) return;
    if (partition < rows.lowest / PARTITION_TOKENS || partition > rows.highest / PARTITION_TOKENS) return;
    const Scratch scratch = scratch_of(a, thread);
    scale_queries(rows, scratch.q);
    attend_partition<KIND>(rows, partition, scratch.q, scratch.scores, stored_partial(a, item, partition));
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

template <CacheKind KIND>
void run(const Parallel& parallel, Attention attention) {
    const int items = attention.num_tiles * attention.cache.kv_heads * slices(attention);
    if (!attention.split) return parallel.run(parallel.pool, run_whole<KIND>, &attention, items);
    parallel.run(parallel.pool, run_part<KIND>, &attention, items * attention.max_partitions);
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
