// Products of bfloat16 with the tile registers of AMX.
#include "amx.hpp"

#if defined(__AMX_TILE__)
namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int PAIRS = 16;      // of bfloat16: the depth of a tile
constexpr int BF16_ROWS = 32;  // two tiles below each other

// The rest of the pairs of a panel and of some rows, with zeros behind.
struct Tail {
    alignas(64) uint16_t weights[PAIRS][PANEL][2];
    alignas(64) uint16_t x[BF16_ROWS][PAIRS][2];

    INLINE void fill(Tail& tail, const uint16_t* weights, const uint16_t* x, int64_t stride, int rows, int pairs) {
        memset(&tail, 0, sizeof tail);
        memcpy(tail.weights, weights, static_cast<size_t>(pairs) * sizeof tail.weights[0]);
        for (int r = 0; r < rows; ++r) memcpy(tail.x[r], x + r * stride, static_cast<size_t>(pairs) * 4);
    }
};

// Adds PAIRS pairs. x1: the rows of the second tile.
template <bool TWO>
INLINE void multiply_pairs(const uint16_t* weights, const uint16_t* x0, const uint16_t* x1, int64_t stride) {
    _tile_loadd(6, weights, PANEL * 4);
    _tile_loadd(4, x0, stride * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + PANEL, PANEL * 4);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (TWO) {
        _tile_loadd(5, x1, stride * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

// sums [rows][32] of `rows` rows, in one tile or in two, of which the second begins at row `second`
template <bool TWO>
void multiply_rows(const uint16_t* weights, const uint16_t* x, int64_t stride, int pairs, int rows, int second,
                   float* sums) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (TWO) {
        _tile_zero(2);
        _tile_zero(3);
    }
    const uint16_t* x1 = x + second * stride;
    int p = 0;
    for (; p + PAIRS <= pairs; p += PAIRS)
        multiply_pairs<TWO>(weights + static_cast<int64_t>(p) * PANEL * 2, x + p * 2, x1 + p * 2, stride);
    if (p < pairs) {
        Tail tail;
        Tail::fill(tail, weights + static_cast<int64_t>(p) * PANEL * 2, x + p * 2, stride, rows, pairs - p);
        written();
        multiply_pairs<TWO>(tail.weights[0][0], tail.x[0][0], tail.x[second][0], PAIRS * 2);
    }
    _tile_stored(0, sums, PANEL * 4);
    _tile_stored(1, sums + 16, PANEL * 4);
    if constexpr (TWO) {
        _tile_stored(2, sums + second * PANEL, PANEL * 4);
        _tile_stored(3, sums + second * PANEL + 16, PANEL * 4);
    }
}

INLINE TileShapes bf16_shapes(int rows) {
    TileShapes shapes;
    for (int tile = 0; tile < 6; ++tile) shapes.set(tile, rows, 64);
    for (int tile = 6; tile < 8; ++tile) shapes.set(tile, PAIRS, 64);
    return shapes;
}

}  // namespace

void multiply_bf16_amx(const Gemm& gemm, const Block& block) {
    const int pairs = (gemm.k + 1) / 2, all = block.end_row - block.row;
    const int64_t stride = 2 * pairs;
    // As many rows each time; the last ones may overlap.
    const int times = divide_up(all, BF16_ROWS), rows = divide_up(all, times);
    const bool two = rows > 16;
    const int tile_rows = two ? (rows + 1) / 2 : rows;
    const uint16_t* x = static_cast<const uint16_t*>(gemm.input) + block.row * stride;
    alignas(64) float sums[BF16_ROWS * PANEL];
    const Tiles shapes(bf16_shapes(tile_rows));
    for (int panel = block.panel; panel < block.end_panel; ++panel) {
        const uint16_t* weights = static_cast<const uint16_t*>(gemm.weights) + panel * stride * PANEL;
        for (int done = 0; done < all; done += rows) {
            const int row = done + rows <= all ? done : all - rows, again = done - row;
            const auto multiply = two ? multiply_rows<true> : multiply_rows<false>;
            multiply(weights, x + row * stride, stride, pairs, rows, rows - tile_rows, sums);
            finish_tile(gemm, sums + again * PANEL, block.row + done, rows - again, panel);
        }
    }
}

}  // namespace octavo::OCTAVO_VARIANT
#endif
