// Products of quantised weights and activations: integers from the first feature of a chunk to the last, which are
// exact in any order, and one fused multiply-add a chunk: the same bits in every variant.
#include "split.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

// How far ahead weights are asked for, into the second-level cache: the hardware's own fetching ends with a page of
// 4 KiB, and two pages were a few percent faster than one.
constexpr int AHEAD = 8192;

// Some rows of a chunk.
struct ChunkRows {
    const int8_t *low, *high;
    int64_t stride;
    const SplitChunk* about;
    int64_t about_stride;
};

INLINE ChunkRows chunk_rows(const SplitRows& x, int row, int chunk, int first_group, int chunks) {
    const int64_t at = row * x.stride + first_group * GROUP;
    return {x.low + at, x.high + at, x.stride, x.chunks + static_cast<int64_t>(row) * chunks + chunk, chunks};
}

// What sums of bytes begin with.
INLINE I start_of(int32_t start) { return WEIGHTS_LESS_128 ? zero_int() : set1_int(start); }

// The high parts of a row: few, and in other features than those of other rows.
template <int V>
INLINE void multiply_high(const uint8_t* bytes, const int8_t* x, const SplitChunk& about, I (&sum)[V]) {
    UNROLLED(v, V) sum[v] = start_of(about.high_start);
    for (int word = 0; word < MOST_CHUNK_GROUPS / 8; ++word) {
        for (uint64_t bits = about.high[word]; bits; bits &= bits - 1) {
            const int quad = word * 64 + __builtin_ctzll(bits);
            const I four = broadcast4(x + quad * 4);
            UNROLLED(v, V) sum[v] = dot4(sum[v], load_int(bytes + quad * QUAD_BYTES + v * 64), four);
        }
    }
}

INLINE void add_to(float* sum, bool first, const float* units, float scale, I low, I high) {
    store(sum, add_chunk(first ? zero() : load(sum), load(units), scale, low, high));
}

// sums [ROWS][32] = rows times the records of U8 of a chunk, plus what sums were unless it is the first one
template <int ROWS>
void multiply_bytes(const WeightChunk& weights, int groups, const ChunkRows& x, bool first, float* sums) {
    constexpr int V = TILE_VECTORS;
    for (int column = 0; column < PANEL; column += 16 * V) {
        I low[ROWS][V];
        UNROLLED(r, ROWS)
            UNROLLED(v, V) low[r][v] = start_of(x.about[r * x.about_stride].low_start);
        const uint8_t* bytes = weights.records + column * 4;
        for (int g = 0; g < groups; ++g) {
            UNROLLED(quad, GROUP_QUADS) {
                const uint8_t* at = bytes + (g * GROUP_QUADS + quad) * QUAD_BYTES;
                __builtin_prefetch(at + AHEAD, 0, 2);
                if constexpr (V == 2) __builtin_prefetch(at + AHEAD + 64, 0, 2);
                UNROLLED(r, ROWS) {
                    const I four = broadcast4(x.low + r * x.stride + g * GROUP + quad * 4);
                    UNROLLED(v, V) low[r][v] = dot4(low[r][v], load_int(at + v * 64), four);
                }
            }
        }
        for (int r = 0; r < ROWS; ++r) {
            const SplitChunk& about = x.about[r * x.about_stride];
            I high[V];
            UNROLLED(v, V) high[v] = zero_int();
            if (about.any_high) multiply_high(bytes, x.high + r * x.stride, about, high);
            UNROLLED(v, V) {
                const int at = column + v * 16;
                add_to(sums + r * PANEL + at, first, weights.units + at, about.scale, low[r][v], high[v]);
            }
        }
    }
}

// Adds up the numbers of each lane: of four sets of four features those of all 16.
INLINE I sum_features(const I* sets) {
    I quarters[4];
    transpose(sets[0], sets[1], sets[2], sets[3], quarters);
    return add_int(add_int(quarters[0], quarters[1]), add_int(quarters[2], quarters[3]));
}

// sums [32] = a row times the records of U4 of a chunk, plus what sums were unless it is the first one: of one row
// widening the weights would be half of the work.
INLINE void multiply_nibbles(const WeightChunk& weights, int groups, const ChunkRows& x, bool first, float* sums) {
    constexpr int SETS = 4 * TILE_VECTORS;
    const SplitChunk& about = *x.about;
    for (int begin = 0; begin < PANEL / 4; begin += SETS) {
        I low[SETS], high[SETS];
        UNROLLED(s, SETS) low[s] = high[s] = zero_int();
        for (int g = 0; g < groups; ++g) {
            const uint8_t* record = weights.records + g * record_bytes(U4);
            UNROLLED(line, 10) __builtin_prefetch(record + AHEAD + line * 64, 0, 2);
            const bool any_high = about.high[g / 8] >> (g % 8 * 8) & 0xff;
            const I x_first = broadcast16(x.low + g * GROUP), x_second = broadcast16(x.low + g * GROUP + 16);
            UNROLLED(s, SETS) {
                const FourFeatures bytes = FourFeatures::less_128_of(record, begin + s);
                low[s] = dot4_less_128(dot4_less_128(low[s], bytes.first, x_first), bytes.second, x_second);
            }
            if (!any_high) continue;
            const I high_first = broadcast16(x.high + g * GROUP), high_second = broadcast16(x.high + g * GROUP + 16);
            UNROLLED(s, SETS) {
                const FourFeatures bytes = FourFeatures::less_128_of(record, begin + s);
                high[s] = dot4_less_128(dot4_less_128(high[s], bytes.first, high_first), bytes.second, high_second);
            }
        }
        UNROLLED(v, TILE_VECTORS) {
            const int at = begin * 4 + v * 16;
            add_to(sums + at, first, weights.units + at, about.scale,
                   add_int(sum_features(low + v * 4), start_of(about.low_start)),
                   add_int(sum_features(high + v * 4), start_of(about.high_start)));
        }
    }
}

using RowsFunction = void (*)(const WeightChunk&, int groups, const ChunkRows&, bool first, float* sums);

template <int... ROWS>
struct FunctionsOf {
    static constexpr RowsFunction by_rows[] = {multiply_bytes<ROWS>...};
};
INLINE RowsFunction function_of(int rows) {
    if constexpr (QUANT_ROWS == 2) return FunctionsOf<1, 2>::by_rows[rows - 1];
    return FunctionsOf<1, 2, 3, 4, 5, 6>::by_rows[rows - 1];
}

// All rows of a block by a chunk of U8, a few rows at a time.
INLINE void multiply_rows(const Gemm& gemm, const Block& block, const WeightChunk& weights, int chunk, float* sums) {
    const int groups = gemm.k / GROUP, chunks = count_chunks(groups);
    const ChunkGroups here = groups_of(chunk, groups);
    for (int row = block.row; row < block.end_row; row += QUANT_ROWS) {
        const int rows = block.end_row - row < QUANT_ROWS ? block.end_row - row : QUANT_ROWS;
        const ChunkRows x = chunk_rows(gemm.split, row, chunk, here.first, chunks);
        function_of(rows)(weights, here.count, x, chunk == 0, sums + (row - block.row) * PANEL);
    }
}

template <WeightKind KIND>
void run(const Gemm& gemm, const Block& block) {
    const int groups = gemm.k / GROUP, chunks = count_chunks(groups), rows = block.end_row - block.row;
    alignas(64) float sums[MOST_BLOCK_ROWS * PANEL];
    alignas(64) uint8_t wide[KIND == U4 ? MOST_CHUNK_BYTES : 1];
    for (int panel = block.panel; panel < block.end_panel; ++panel) {
        const uint8_t* at = static_cast<const uint8_t*>(gemm.weights) + panel * panel_bytes_of(KIND, groups);
        for (int c = 0; c < chunks; ++c) {
            const ChunkGroups here = groups_of(c, groups);
            const WeightChunk weights = chunk_of(KIND, at, c, here.first);
            if (KIND == U8) {
                multiply_rows(gemm, block, weights, c, sums);
            } else if (rows == 1) {
                const ChunkRows x = chunk_rows(gemm.split, block.row, c, here.first, chunks);
                multiply_nibbles(weights, here.count, x, c == 0, sums);
            } else {
                widen(weights.records, here.count, wide);
                multiply_rows(gemm, block, {weights.units, wide}, c, sums);
            }
        }
        finish_tile(gemm, sums, block.row, rows, panel);
    }
}

}  // namespace

void multiply_quantised(const Gemm& gemm, const Block& block) {
    gemm.kind == U8 ? run<U8>(gemm, block) : run<U4>(gemm, block);
}

}  // namespace octavo::OCTAVO_VARIANT
