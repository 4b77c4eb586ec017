// Products of float32 (the exact mode) and of bfloat16 with float32 sums.
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

template <int ROWS>
void tile_f32(const Gemm& gemm, int row, int panel, float* sums) {
    constexpr int V = TILE_VECTORS;
    const int k = gemm.k;
    const float* x = static_cast<const float*>(gemm.input) + static_cast<int64_t>(row) * k;
    const float* weights = static_cast<const float*>(gemm.weights) + static_cast<int64_t>(panel) * k * PANEL;
    for (int column = 0; column < PANEL; column += 16 * V) {
        F sum[ROWS][V];
        UNROLLED(r, ROWS)
            UNROLLED(v, V) sum[r][v] = zero();
        for (int i = 0; i < k; ++i) {
            F weight[V];
            UNROLLED(v, V) weight[v] = load(weights + static_cast<int64_t>(i) * PANEL + column + v * 16);
            UNROLLED(r, ROWS) {
                const F one = set1(x[static_cast<int64_t>(r) * k + i]);
                UNROLLED(v, V) sum[r][v] = mul_add(weight[v], one, sum[r][v]);
            }
        }
        UNROLLED(r, ROWS) {
            UNROLLED(v, V) store(sums + r * PANEL + column + v * 16, sum[r][v]);
        }
    }
}

template <int ROWS>
void tile_bf16(const Gemm& gemm, int row, int panel, float* sums) {
    constexpr int V = TILE_VECTORS;
    const int pairs = (gemm.k + 1) / 2;
    const uint16_t* x = static_cast<const uint16_t*>(gemm.input) + static_cast<int64_t>(row) * pairs * 2;
    const uint16_t* weights =
        static_cast<const uint16_t*>(gemm.weights) + static_cast<int64_t>(panel) * pairs * 2 * PANEL;
    for (int column = 0; column < PANEL; column += 16 * V) {
        F sum[ROWS][V];
        UNROLLED(r, ROWS)
            UNROLLED(v, V) sum[r][v] = zero();
        for (int i = 0; i < pairs; ++i) {
            I weight[V];
            UNROLLED(v, V) {
                weight[v] = load_int(weights + (static_cast<int64_t>(i) * PANEL + column + v * 16) * 2);
            }
            UNROLLED(r, ROWS) {
                const I two = broadcast4(x + (static_cast<int64_t>(r) * pairs + i) * 2);
                UNROLLED(v, V) sum[r][v] = dot2(sum[r][v], weight[v], two);
            }
        }
        UNROLLED(r, ROWS) {
            UNROLLED(v, V) store(sums + r * PANEL + column + v * 16, sum[r][v]);
        }
    }
}

#if defined(__AVX512BW__)
constexpr TileFunction F32_TILES[] = {tile_f32<1>, tile_f32<2>, tile_f32<3>, tile_f32<4>,
                                      tile_f32<5>, tile_f32<6>, tile_f32<7>, tile_f32<8>};
constexpr TileFunction BF16_TILES[] = {tile_bf16<1>, tile_bf16<2>, tile_bf16<3>, tile_bf16<4>,
                                       tile_bf16<5>, tile_bf16<6>, tile_bf16<7>, tile_bf16<8>};
#elif defined(__AVX2__)
constexpr TileFunction F32_TILES[] = {tile_f32<1>, tile_f32<2>, tile_f32<3>, tile_f32<4>};
constexpr TileFunction BF16_TILES[] = {tile_bf16<1>, tile_bf16<2>, tile_bf16<3>, tile_bf16<4>};
#else
constexpr TileFunction F32_TILES[] = {tile_f32<1>, tile_f32<2>};
constexpr TileFunction BF16_TILES[] = {tile_bf16<1>, tile_bf16<2>};
#endif

}  // namespace

void multiply_float(const Gemm& gemm, const Block& block) {
    static_assert(sizeof F32_TILES / sizeof F32_TILES[0] == FLOAT_ROWS);
    multiply_by_rows(gemm, block, gemm.kind == F32 ? F32_TILES : BF16_TILES, FLOAT_ROWS);
}

}  // namespace octavo::OCTAVO_VARIANT
