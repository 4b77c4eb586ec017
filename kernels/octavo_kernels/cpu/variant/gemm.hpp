// What all matrix products share: the tiles that a thread multiplies, and what happens to a finished one.
//
// A tile is a few rows by one panel. Its K loop runs from the first input feature to the last, whatever the rows around
// it: a row's result does not depend on the others, nor on how many there are.
#pragma once
#include "math.hpp"

namespace octavo::OCTAVO_VARIANT {

constexpr int MOST_BLOCK_ROWS = 512;

// At most MOST_BLOCK_ROWS rows and any panels, the ends excluded, and the panel whose weights will be wanted soon (or
// -1).
struct Block {
    int row, end_row, panel, end_panel, next_panel;
};

namespace {

INLINE int divide_up(int a, int b) { return (a + b - 1) / b; }

INLINE F add_bias(F value, const float* bias, int column, int columns) {
    return bias ? add(value, load_first(bias + column, columns)) : value;
}

INLINE void write_columns(float* out, const float* residual, F value, int column, int columns) {
    if (residual) value = add(value, load_first(residual + column, columns));
    store_first(out + column, value, columns);
}

// Write `rows` rows of a panel, held in sums [rows][32].
INLINE void finish_tile(const Gemm& gemm, const float* sums, int row, int rows, int panel) {
    const Epilogue& e = gemm.epilogue;
    const bool gated = e.gate != NO_GATE;
    const int features = gated ? gemm.n / 2 : gemm.n;
    const int first = panel * (gated ? PANEL / 2 : PANEL), count = features - first;
    for (int r = 0; r < rows; ++r) {
        float* out = e.out + (row + r) * e.out_stride;
        const float* residual = e.residual ? e.residual + (row + r) * e.residual_stride : nullptr;
        const F left = add_bias(load(sums + r * PANEL), e.bias, first, count), second = load(sums + r * PANEL + 16);
        if (gated) {
            const F up = add_bias(second, e.bias, features + first, count);
            write_columns(out, residual, mul(e.gate == GATE_SILU ? silu(left) : gelu_tanh(left), up), first, count);
            continue;
        }
        write_columns(out, residual, left, first, count);
        if (count > 16)
            write_columns(out, residual, add_bias(second, e.bias, first + 16, count - 16), first + 16, count - 16);
    }
}

using TileFunction = void (*)(const Gemm&, int row, int panel, float* sums);

// Multiply by functions for 1, 2, 3, … rows, up to `most`. A row has the same bits by each of them, but for the sign and
// payload of a NaN: of two the processor passes on the first operand's, and the compiler orders the operands.
INLINE void multiply_by_rows(const Gemm& gemm, const Block& block, const TileFunction* by_rows, int most) {
    alignas(64) float sums[MOST_TILE_ROWS * PANEL];
    for (int panel = block.panel; panel < block.end_panel; ++panel) {
        for (int row = block.row; row < block.end_row;) {
            const int rows = block.end_row - row < most ? block.end_row - row : most;
            by_rows[rows - 1](gemm, row, panel, sums);
            finish_tile(gemm, sums, row, rows, panel);
            row += rows;
        }
    }
}

}  // namespace

// By the kind of the weights: what multiply_block chooses from.
void multiply_float(const Gemm&, const Block&);
void multiply_quantised(const Gemm&, const Block&);
// The same with the tile registers of AMX: the same bits for quantised weights, others for bfloat16.
void multiply_bf16_amx(const Gemm&, const Block&);
void multiply_quantised_amx(const Gemm&, const Block&);
// What multiply_quantised_amx wants first, for each 32 rows of a block.
void gather_high_rows(const Gemm&, const Block&, int pass);

void gemm(const Parallel&, const Gemm&);
void quantize_weights(const float*, int, uint8_t*);
void prepare(const Parallel&, const Prepare&);
void rms_norm(const Parallel&, const RmsNorm&);
void add_norm(const Parallel&, const AddNorm&);
void softcap(const Parallel&, float*, int64_t, float);
void route(const Parallel&, const Route&);
void lora(const Parallel&, const LoraJob&);
void activate(const Parallel&, const Activation&);
void rope_cache(const Parallel&, const RopeCache&);
void attention(const Parallel&, const Attention&);

}  // namespace octavo::OCTAVO_VARIANT
