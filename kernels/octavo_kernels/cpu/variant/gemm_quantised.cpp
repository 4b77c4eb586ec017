// Products of quantised weights and activations: integers from the first feature of a chunk to the last, which are
// exact in any order, and one fused multiply-add a chunk: the same bits in every variant.
#include "split.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

// One of the parts of some rows: the low or the high one.
struct Part {
    const int8_t* values;
    int64_t stride;
    const int32_t* groups;  // start and upper, of SplitGroup
    int64_t groups_stride;
};

// How far ahead weights are asked for: the hardware's own fetching ends with a page of 4 KiB.
constexpr int AHEAD = 4096;
constexpr int GROUP_INTS = sizeof(SplitGroup) / sizeof(int32_t);

// Four input features of 16 * V output features.
template <WeightKind KIND, int V>
INLINE void load_quants(const uint8_t* record, int step, int column, I (&quants)[V]) {
    if constexpr (KIND == U8) {
        UNROLLED(v, V) quants[v] = load_int(record + step * 128 + column * 4 + v * 64);
        return;
    }
    const I both = load_int(record + step * 64);
    if constexpr (V == 2) {
        quants[0] = low_nibbles(both), quants[1] = high_nibbles(both);
    } else {
        quants[0] = column ? high_nibbles(both) : low_nibbles(both);
    }
}

// What a group's dot products begin with: less the middle quant times the activations.
template <WeightKind KIND>
INLINE I start_of(int32_t less_8) {
    if constexpr (KIND == U4) return NARROW_NIBBLES ? zero_int() : set1_int(less_8);
    return WEIGHTS_LESS_128 ? zero_int() : set1_int(less_8 * 16);
}

template <WeightKind KIND>
INLINE I add_products(I sum, I quants, I x) {
    return KIND == U4 ? dot4_nibbles(sum, quants, x) : dot4(sum, quants, x);
}

// total += dots times the steps of 16 output features; about: start and upper of the group
template <WeightKind KIND>
INLINE I add_group(I total, I dots, const uint8_t* record, int column, const int32_t* about) {
    const uint8_t* steps = record + Format<KIND>::quant_bytes;
    if constexpr (KIND == U8) return add_int(total, mul_int(dots, load_int16(steps + column * 2)));
    if constexpr (NARROW_NIBBLES) dots = finish_nibbles(set1_int(about[0]), dots);
    return add_steps(total, dots, set1_int(about[1]), load_int(steps + column * 4));
}

// total += rows times the groups of a chunk whose bits are set
template <WeightKind KIND, int ROWS, int V>
INLINE void add_groups(I (&total)[ROWS][V], const uint8_t* records, int column, uint32_t bits, const Part& part) {
    for (; bits; bits &= bits - 1) {
        const int g = __builtin_ctz(bits);
        const uint8_t* record = records + g * Format<KIND>::record_bytes;
        const int8_t* x = part.values + g * GROUP;
        const int32_t* about = part.groups + g * GROUP_INTS;
        I dots[ROWS][V];
        UNROLLED(line, Format<KIND>::record_bytes / 64) __builtin_prefetch(record + AHEAD + line * 64);
        UNROLLED(r, ROWS) {
            const I start = start_of<KIND>(about[r * part.groups_stride]);
            UNROLLED(v, V) dots[r][v] = start;
        }
        UNROLLED(step, GROUP / 4) {
            I quants[V];
            load_quants<KIND, V>(record, step, column, quants);
            UNROLLED(r, ROWS) {
                const I four = broadcast4(x + r * part.stride + step * 4);
                UNROLLED(v, V) dots[r][v] = add_products<KIND>(dots[r][v], quants[v], four);
            }
        }
        UNROLLED(r, ROWS) {
            UNROLLED(v, V) {
                total[r][v] =
                    add_group<KIND>(total[r][v], dots[r][v], record, column + v * 16, about + r * part.groups_stride);
            }
        }
    }
}

template <WeightKind KIND, int ROWS>
void tile(const Gemm& gemm, int row, int panel, float* sums) {
    constexpr int V = TILE_VECTORS;
    const SplitRows& x = gemm.split;
    const int groups = gemm.k / GROUP, chunks = count_chunks(groups);
    const uint8_t* weights = static_cast<const uint8_t*>(gemm.weights) + panel * panel_bytes_of<KIND>(groups);
    const SplitGroup* about = x.groups + static_cast<int64_t>(row) * groups;
    const SplitChunk* scales = x.chunks + static_cast<int64_t>(row) * chunks;
    for (int column = 0; column < PANEL; column += 16 * V) {
        F sum[ROWS][V];
        UNROLLED(r, ROWS)
            UNROLLED(v, V) sum[r][v] = zero();
        for (int c = 0; c < chunks; ++c) {
            const ChunkGroups here = groups_of(c, groups);
            const WeightChunk chunk = chunk_of<KIND>(weights, c, here.first);
            const int64_t at = row * x.stride + here.first * GROUP;
            const int64_t groups_stride = static_cast<int64_t>(groups) * GROUP_INTS;
            I low[ROWS][V], high[ROWS][V];
            UNROLLED(r, ROWS)
                UNROLLED(v, V) low[r][v] = high[r][v] = zero_int();
            add_groups<KIND, ROWS, V>(low, chunk.records, column,
                                      static_cast<uint32_t>((uint64_t{1} << here.count) - 1),
                                      {x.low + at, x.stride, &about[here.first].low_start, groups_stride});
            // Few groups have a high part, and other ones in every row.
            for (int r = 0; r < ROWS; ++r) {
                const uint32_t bits = scales[r * chunks + c].high;
                if (bits == 0) continue;
                const SplitGroup& group = about[r * groups + here.first];
                add_groups<KIND, 1, V>(reinterpret_cast<I(&)[1][V]>(high[r]), chunk.records, column, bits,
                                       {x.high + at + r * x.stride, x.stride, &group.high_start, groups_stride});
            }
            UNROLLED(v, V) {
                const F units = load(chunk.units + column + v * 16);
                UNROLLED(r, ROWS)
                    sum[r][v] = add_chunk(sum[r][v], units, scales[r * chunks + c].scale, low[r][v], high[r][v]);
            }
        }
        UNROLLED(r, ROWS) {
            UNROLLED(v, V) store(sums + r * PANEL + column + v * 16, sum[r][v]);
        }
    }
}

template <WeightKind KIND, int... ROWS>
struct TilesOf {
    static constexpr TileFunction by_rows[] = {tile<KIND, ROWS>...};
};

template <WeightKind KIND>
void run(const Gemm& gemm, const Block& block) {
    if constexpr (QUANT_ROWS == 2) {
        multiply_by_rows(gemm, block, TilesOf<KIND, 1, 2>::by_rows, 2);
    } else {
        multiply_by_rows(gemm, block, TilesOf<KIND, 1, 2, 3, 4, 5, 6>::by_rows, 6);
    }
}

}  // namespace

void multiply_quantised(const Gemm& gemm, const Block& block) {
    gemm.kind == U8 ? run<U8>(gemm, block) : run<U4>(gemm, block);
}

}  // namespace octavo::OCTAVO_VARIANT
