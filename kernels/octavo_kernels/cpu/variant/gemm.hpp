// What all matrix products share: how a matrix is cut into tiles, and what happens to a finished tile.
//
// A tile is a few rows by one panel. Its K loop runs from the first input feature to the last, whatever the rows around
// it: a row's result does not depend on the others, nor on how many there are.
#pragma once
#include "math.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

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

// The functions that multiply 1, 2, 3, … rows, up to `most`.
struct Tiles {
    const TileFunction* by_rows;
    int most;
};

struct GemmJob {
    const Gemm* gemm;
    Tiles tiles;
    int block_rows, row_blocks, chunk_panels, panels;
};

static void run_gemm_item(void* job_pointer, int index, int) {
    const GemmJob& job = *static_cast<const GemmJob*>(job_pointer);
    const Gemm& gemm = *job.gemm;
    // Row blocks change fastest: a chunk of the weights is read once while all rows pass.
    const int begin = (index % job.row_blocks) * job.block_rows;
    const int end = begin + job.block_rows < gemm.rows ? begin + job.block_rows : gemm.rows;
    const int first_panel = (index / job.row_blocks) * job.chunk_panels;
    const int last_panel = first_panel + job.chunk_panels < job.panels ? first_panel + job.chunk_panels : job.panels;
    alignas(64) float sums[8 * PANEL];
    for (int panel = first_panel; panel < last_panel; ++panel) {
        for (int row = begin; row < end;) {
            const int rows = end - row < job.tiles.most ? end - row : job.tiles.most;
            job.tiles.by_rows[rows - 1](gemm, row, panel, sums);
            finish_tile(gemm, sums, row, rows, panel);
            row += rows;
        }
    }
}

static void run_gemm(const Parallel& parallel, const Gemm& gemm, Tiles tiles, int row_bytes) {
    GemmJob job{&gemm, tiles, 0, 0, 0, (gemm.n + PANEL - 1) / PANEL};
    // A block of rows stays in the core's own cache (256 KiB of it) while the panels pass.
    int block = (256 << 10) / (row_bytes + 1) / tiles.most * tiles.most;
    if (block < 8 * tiles.most) block = 8 * tiles.most;
    job.block_rows = block;
    job.row_blocks = (gemm.rows + block - 1) / block;
    job.chunk_panels = job.panels / (parallel.threads * 8);
    if (job.chunk_panels < 1) job.chunk_panels = 1;
    const int chunks = (job.panels + job.chunk_panels - 1) / job.chunk_panels;
    parallel.run(parallel.pool, run_gemm_item, &job, chunks * job.row_blocks);
}

}  // namespace

void gemm_float(const Parallel&, const Gemm&);
void gemm_quantised(const Parallel&, const Gemm&);
void to_bf16(const Parallel&, const float*, uint16_t*, int, int);
void quantize(const Parallel&, const float*, int8_t*, QuantGroup*, int, int);
void quantize_weights(WeightKind, const float*, int, uint8_t*);
void prepare(const Parallel&, const Prepare&);
void rms_norm(const Parallel&, const RmsNorm&);
void add_norm(const Parallel&, const AddNorm&);
void softcap(const Parallel&, float*, int64_t, float);
void silu_mul(const Parallel&, const float*, float*, int, int);
void rope_cache(const Parallel&, const RopeCache&);
void attention(const Parallel&, const Attention&);

}  // namespace octavo::OCTAVO_VARIANT
