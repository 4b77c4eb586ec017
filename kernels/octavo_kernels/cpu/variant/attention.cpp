// Paged attention over block tables, for decode rows and prefill chunks mixed in one call.
//
// A context is cut into partitions of 256 tokens counted from position 0. Each gives (largest score, sum of the
// weights, weighted values), and partitions merge in order, as in FlashAttention's online softmax (Dao et al., 2022). A
// query's numbers depend on its own position only: what others in its tile see in addition enters as an exact zero.
#include "softmax.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr float TINY = 1.17549435e-38f;

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
    for (int token = tile.begin; token < tile.begin + tile.count; ++token) {
        const int last = a.positions[token] < context ? a.positions[token] : context - 1;
        const int first = a.window && last >= a.window ? last - a.window + 1 : 0;
        if (first < rows.lowest) rows.lowest = first;
        if (last > rows.highest) rows.highest = last;
        for (int head = first_head; head < first_head + heads; ++head) {
            const int at = rows.count++;
            rows.offsets[at] = (static_cast<int64_t>(token) * a.heads + head) * a.cache.head_dim;
            rows.first[at] = first;
            rows.last[at] = last;
        }
    }
}

INLINE Rows no_rows(const Attention& a, int lane) {
    return {a, nullptr, nullptr, lane / slices(a), 0, true, {}, {}, {}, INT32_MAX, -1};
}

INLINE Rows rows_of(const Attention& a, int item) {
    const int lane = item % lanes(a);
    Rows rows = no_rows(a, lane);
    add_tile(rows, a.tiles[item / lanes(a)], lane % slices(a));
    return rows;
}

INLINE Partial partial_at(float* memory, int head_dim) {
    return {memory, memory + ATTENTION_ROWS * head_dim, memory + ATTENTION_ROWS * (head_dim + 1)};
}

INLINE void find_span(const Rows& rows, int partition, Span& span) {
    const Attention& a = rows.attention;
    const int start = partition * PARTITION_TOKENS, end = start + PARTITION_TOKENS;
    span.low = rows.lowest > start ? rows.lowest : start;
    span.high = rows.highest + 1 < end ? rows.highest + 1 : end;
    span.begin = span.low / BLOCK_TOKENS * BLOCK_TOKENS;
    span.count = (span.high - span.begin + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    const int32_t* table = rows.table + span.begin / BLOCK_TOKENS;
    const int32_t* next_table = rows.next_table ? rows.next_table + span.begin / BLOCK_TOKENS : nullptr;
    const bool last = rows.kv_head + 1 == a.cache.kv_heads;
    for (int b = 0; b < span.count; ++b) {
        span.blocks[b] = head_block(a.cache, table[b], rows.kv_head);
        span.next[b] = nullptr;
        if (!rows.cold) continue;
        if (!last) {
            span.next[b] = head_block(a.cache, table[b], rows.kv_head + 1).keys;
        } else if (next_table && next_table[b] >= 0) {
            span.next[b] = head_block(a.cache, next_table[b], 0).keys;
        }
    }
}

// Hands out a thread's memory.
struct Memory {
    float* at;

    float* floats(int count) {
        float* from = at;
        at += count;
        return from;
    }
    template <typename T>
    T* bytes(int count) {
        return reinterpret_cast<T*>(floats(count / 4));
    }
    Partial partial(int head_dim) { return partial_at(floats(ATTENTION_ROWS * (head_dim + 2)), head_dim); }
};

Scratch scratch_of(const Attention& a, int thread) {
    const int d = a.cache.head_dim, stride = (d + 63) / 64 * 64;
    Memory memory{a.scratch + thread * a.scratch_stride};
    Scratch scratch;
    scratch.scores = memory.floats(ATTENTION_ROWS * PARTITION_TOKENS);
    scratch.queries = memory.floats(ATTENTION_ROWS * stride);
    scratch.digits = reinterpret_cast<int8_t*>(scratch.queries);
    scratch.query_stride = stride;
    scratch.units = memory.floats(ATTENTION_ROWS);
    scratch.offsets = memory.bytes<int32_t>(ATTENTION_ROWS * 4);
    scratch.weights = memory.bytes<uint8_t>(2 * ATTENTION_ROWS * PARTITION_TOKENS);
    scratch.value_scales = memory.floats(PARTITION_TOKENS);
    scratch.weight_units = memory.floats(ATTENTION_ROWS);
    scratch.sums = memory.bytes<int32_t>(2 * ATTENTION_ROWS * PARTITION_TOKENS * 4);
    scratch.values = memory.bytes<uint8_t>(PARTITION_TOKENS * d);
    scratch.merged = memory.partial(d);
    scratch.next = memory.partial(d);
    return scratch;
}

INLINE void prepare(const Rows& rows, const Scratch& scratch) {
    rows.attention.cache.kind == CACHE_INT8 ? prepare_integers(rows, scratch) : prepare_floats(rows, scratch);
}

void attend_partition(const Rows& rows, int partition, const Scratch& scratch, const Partial& partial) {
    Span span;
    find_span(rows, partition, span);
    rows.attention.cache.kind == CACHE_INT8 ? attend_integers(rows, span, scratch, partial)
                                            : attend_floats(rows, span, scratch, partial);
}

// left = left merged with right, which follows it
void merge(const Partial& left, const Partial& right, int rows, int head_dim) {
    static_assert(ATTENTION_ROWS == 16, "a lane for each row");
    float keep[16], gain[16];
    const F l = load(left.largest), n = load(right.largest), largest = max(l, n);
    store(keep, power_of_two(sub(l, largest)));
    store(gain, power_of_two(sub(n, largest)));
    store(left.largest, largest);
    store(left.total, add(mul(load(left.total), load(keep)), mul(load(right.total), load(gain))));
    for (int r = 0; r < rows; ++r) {
        const F kept = set1(keep[r]), gained = set1(gain[r]);
        for (int d = r * head_dim; d < (r + 1) * head_dim; d += 16) {
            store(left.weighted + d, add(mul(load(left.weighted + d), kept), mul(load(right.weighted + d), gained)));
        }
    }
}

void finish(const Rows& rows, const Partial& merged) {
    const int head_dim = rows.attention.cache.head_dim;
    float inverse[16];
    store(inverse, div(set1(1.0f), max(set1(TINY), load(merged.total))));
    for (int r = 0; r < rows.count; ++r) {
        const F factor = set1(inverse[r]);
        float* out = rows.attention.out + rows.offsets[r];
        for (int d = 0; d < head_dim; d += 16) store(out + d, mul(load(merged.weighted + r * head_dim + d), factor));
    }
}

INLINE void finish_empty(const Rows& rows) {
    for (int r = 0; r < rows.count; ++r) {
        memset(rows.attention.out + rows.offsets[r], 0,
               static_cast<size_t>(rows.attention.cache.head_dim) * sizeof(float));
    }
}

INLINE Partial stored_partial(const Attention& a, int item, int partition) {
    const int64_t each = ATTENTION_ROWS * (a.cache.head_dim + 2);
    return partial_at(a.partials + (static_cast<int64_t>(item) * a.stored_partitions + partition) * each,
                      a.cache.head_dim);
}

// One partition for several sequences that share its blocks: their rows are attended as one tile's.
void run_shared(void* pointer, int index, int thread) {
    const Attention& a = *static_cast<const Attention*>(pointer);
    // Those that read the same keys and values come after one another.
    const int lane = index / a.num_shared, slice = lane % slices(a), head_dim = a.cache.head_dim;
    const SharedTiles& shared = a.shared[index % a.num_shared];
    const TileRegisters registers(fits_tiles(a.cache, ATTENTION_ROWS));
    const Scratch scratch = scratch_of(a, thread);
    for (int next = shared.first; next < shared.first + shared.count;) {
        Rows rows = no_rows(a, lane);
        const int begin = next;
        while (next < shared.first + shared.count) {
            const QueryTile& tile = a.tiles[a.shared_tiles[next]];
            if (rows.count + rows_in(a, tile, slice) > ATTENTION_ROWS) break;
            add_tile(rows, tile, slice);
            ++next;
        }
        prepare(rows, scratch);
        attend_partition(rows, shared.partition, scratch, scratch.next);
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
            __builtin_prefetch(rows.attention.out + rows.offsets[r] + d, 1);
            if (!last) __builtin_prefetch(rows.attention.q + rows.offsets[r] + next + d);
        }
    }
}

void attend_whole(const Attention& a, int item, int thread, const int32_t* next_table, bool cold) {
    Rows rows = rows_of(a, item);
    rows.next_table = next_table;
    rows.cold = cold;
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
        prepare(rows, scratch);
        int partition = shared ? shared : first;
        if (!shared) attend_partition(rows, partition++, scratch, merged);
        for (; partition <= last; ++partition) {
            attend_partition(rows, partition, scratch, scratch.next);
            merge(merged, scratch.next, rows.count, a.cache.head_dim);
        }
    }
    finish(rows, merged);
}

void run_whole(void* pointer, int item, int thread) {
    const Attention& a = *static_cast<const Attention*>(pointer);
    const TileRegisters registers(fits_tiles(a.cache, rows_in(a, a.tiles[item / lanes(a)], item % slices(a))));
    attend_whole(a, item, thread, nullptr, false);
}

struct Tiles {
    const Attention& attention;
    int threads;
};

// All heads of a tile: their keys and values lie next to each other.
void run_tile(void* pointer, int tile, int thread) {
    const Tiles& tiles = *static_cast<const Tiles*>(pointer);
    const Attention& a = tiles.attention;
    const TileRegisters registers(fits_tiles(a.cache, rows_in(a, a.tiles[tile], 0)));
    const int next = tile + tiles.threads, row = a.tiles[tile].row;
    const bool other = next < a.num_tiles && a.tiles[next].row != row;
    const int32_t* next_table = other ? a.block_tables + a.tiles[next].row * a.max_blocks : nullptr;
    const bool cold = tile < tiles.threads || a.tiles[tile - tiles.threads].row != row;
    for (int lane = 0; lane < lanes(a); ++lane) attend_whole(a, tile * lanes(a) + lane, thread, next_table, cold);
}

void run_part(void* pointer, int index, int thread) {
    const Attention& a = *static_cast<const Attention*>(pointer);
    const int item = index / a.stored_partitions, partition = index % a.stored_partitions;
    if (partition < a.tiles[item / lanes(a)].shared) return;
    Rows rows = rows_of(a, item);
    rows.cold = false;
    if (rows.lowest > rows.highest) return;
    if (partition < rows.lowest / PARTITION_TOKENS || partition > rows.highest / PARTITION_TOKENS) return;
    const TileRegisters registers(fits_tiles(a.cache, rows.count));
    const Scratch scratch = scratch_of(a, thread);
    prepare(rows, scratch);
    attend_partition(rows, partition, scratch, stored_partial(a, item, partition));
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

constexpr int TILES_PER_THREAD = 4;

}  // namespace

void attention(const Parallel& parallel, const Attention& job) {
    Attention attention = job;
    const int items = attention.num_tiles * lanes(attention);
    if (attention.num_shared)
        parallel.run(parallel.pool, run_shared, &attention, attention.num_shared * lanes(attention));
    if (attention.split) {
        parallel.run(parallel.pool, run_part, &attention, items * attention.stored_partitions);
        parallel.run(parallel.pool, run_merge, &attention, items);
    } else if (attention.num_tiles >= TILES_PER_THREAD * parallel.threads) {
        // A tile is one piece of work where that leaves enough pieces.
        Tiles tiles{attention, parallel.threads};
        parallel.run(parallel.pool, run_tile, &tiles, attention.num_tiles);
    } else {
        parallel.run(parallel.pool, run_whole, &attention, items);
    }
}

}  // namespace octavo::OCTAVO_VARIANT
