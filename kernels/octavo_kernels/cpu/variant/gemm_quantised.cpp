// Products of weights and activations of 8 bits. Within a group of 32 the sum is an exact integer; groups are
// added in order, each with one fused multiply-add: the same bits in every variant.
#include "gemm.hpp"
#include "quant_format.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

// sums with four more products per lane; SMALL: quants are at most 63
template <bool SMALL>
INLINE I add_products(I sum, I quants, I x) {
    if constexpr (SMALL) return dot4_small(sum, quants, x);
    return dot4(sum, quants, x);
}

// What a part's sum begins with: -zero * the sum of its activations, and MAGIC where that helps.
template <WeightKind KIND, bool SMALL>
INLINE I start_of(const Gemm& gemm, const QuantGroup& group, int part) {
    const I base = Format<KIND>::wide ? zero_int() : set1_int(MAGIC_BITS);
    if constexpr (Format<KIND>::minima || (!SMALL && WEIGHTS_LESS_128)) return base;
    const int32_t offset = Format<KIND>::parts == 1 ? group.offset
                           : part                   ? group.offset - group.offset_low
                                                    : group.offset_low;
    if constexpr (!SMALL) return add_int(base, set1_int(offset));  // zero is 128
    return add_int(base, shift_right(set1_int(offset), gemm.zero_shift));
}

template <WeightKind KIND, bool SMALL, int ROWS>
void tile(const Gemm& gemm, int row, int panel, float* sums) {
    using Of = Format<KIND>;
    constexpr int V = TILE_VECTORS, STEPS = 8 / Of::parts;
    const int groups = gemm.k / GROUP;
    const int8_t* values = static_cast<const int8_t*>(gemm.input) + static_cast<int64_t>(row) * gemm.k;
    const QuantGroup* about = gemm.groups + static_cast<int64_t>(row) * groups;
    const uint8_t* weights =
        static_cast<const uint8_t*>(gemm.weights) + static_cast<int64_t>(panel) * groups * Of::record_bytes;
    for (int column = 0; column < PANEL; column += 16 * V) {
        F sum[ROWS][V];
        UNROLLED(r, ROWS)
            UNROLLED(v, V) sum[r][v] = zero();
        for (int g = 0; g < groups; ++g) {
            const uint8_t* record = weights + static_cast<int64_t>(g) * Of::record_bytes;
            const int8_t* x = values + g * GROUP;
            UNROLLED(part, Of::parts) {
                I dots[ROWS][V];
                UNROLLED(r, ROWS) {
                    const I start = start_of<KIND, SMALL>(gemm, about[r * groups + g], part);
                    UNROLLED(v, V) dots[r][v] = start;
                }
                UNROLLED(step, STEPS) {
                    I quants[V];
                    UNROLLED(v, V) quants[v] = load_int(record + (part * STEPS + step) * 128 + column * 4 + v * 64);
                    UNROLLED(r, ROWS) {
                        const I four = broadcast4(x + r * gemm.k + (part * STEPS + step) * 4);
                        UNROLLED(v, V) dots[r][v] = add_products<SMALL>(dots[r][v], quants[v], four);
                    }
                }
                UNROLLED(v, V) {
                    const F scale = Of::load_plane(record, part, column + v * 16);
                    const F less = Of::wide ? zero() : mul(scale, set1(-MAGIC));
                    UNROLLED(r, ROWS) {
                        const F dot = Of::wide ? to_float(dots[r][v]) : as_float(dots[r][v]);
                        sum[r][v] = fma(set1(about[r * groups + g].scale), fma(scale, dot, less), sum[r][v]);
                    }
                }
            }
            if constexpr (Of::minima) {
                UNROLLED(v, V) {
                    const F minimum = Of::load_plane(record, 1, column + v * 16);
                    UNROLLED(r, ROWS) {
                        sum[r][v] = fma(set1(about[r * groups + g].scaled_sum), minimum, sum[r][v]);
                    }
                }
            }
        }
        UNROLLED(r, ROWS) {
            UNROLLED(v, V) store(sums + r * PANEL + column + v * 16, sum[r][v]);
        }
    }
}

template <WeightKind KIND, bool SMALL, int... ROWS>
struct TilesOf {
    static constexpr TileFunction by_rows[] = {tile<KIND, SMALL, ROWS>...};
};

template <WeightKind KIND, bool SMALL = true>
void run(const Gemm& gemm, const Block& block) {
    if constexpr (QUANT_ROWS == 2) {
        multiply_by_rows(gemm, block, TilesOf<KIND, SMALL, 1, 2>::by_rows, 2);
    } else {
        multiply_by_rows(gemm, block, TilesOf<KIND, SMALL, 1, 2, 3, 4, 5, 6>::by_rows, 6);
    }
}

}  // namespace

void multiply_quantised(const Gemm& gemm, const Block& block) {
    switch (gemm.kind) {
        case U8: return gemm.zero_shift == 0 ? run<U8, false>(gemm, block) : run<U8>(gemm, block);
        case U8_MIN: return run<U8_MIN>(gemm, block);
        case U8_FINE: return run<U8_FINE>(gemm, block);
        default: return;
    }
}

}  // namespace octavo::OCTAVO_VARIANT
