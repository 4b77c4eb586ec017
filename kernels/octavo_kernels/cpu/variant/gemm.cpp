// How a product is cut into blocks, and which code multiplies them.
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int ROW_STEP = 24;  // a multiple of every tile's rows

struct GemmJob {
    const Gemm* gemm;
    int block_rows, row_blocks, chunk_panels, panels, threads;
};

void run_item(void* job_pointer, int index, int) {
    const GemmJob& job = *static_cast<const GemmJob*>(job_pointer);
    // Row blocks change fastest: a chunk of the weights is read once while all rows pass.
    Block block;
    block.row = index % job.row_blocks * job.block_rows;
    block.end_row = block.row + job.block_rows < job.gemm->rows ? block.row + job.block_rows : job.gemm->rows;
    block.panel = index / job.row_blocks * job.chunk_panels;
    block.end_panel = block.panel + job.chunk_panels < job.panels ? block.panel + job.chunk_panels : job.panels;
    // Threads that work alike take items in turn.
    block.next_panel = (index + job.threads) / job.row_blocks * job.chunk_panels;
    if (block.next_panel >= job.panels) block.next_panel = -1;
    multiply_block(*job.gemm, block);
}

int row_bytes(const Gemm& gemm) { return gemm.k * (gemm.kind == F32 ? 4 : gemm.kind == BF16 ? 2 : 1); }

}  // namespace

void multiply_block(const Gemm& gemm, const Block& block) {
#if defined(__AMX_TILE__)
    if (gemm.kind == BF16) return multiply_bf16_amx(gemm, block);
    if (gemm.kind != F32 && block.end_row - block.row >= AMX_QUANT_ROWS) return multiply_quantised_amx(gemm, block);
#endif
    if (gemm.kind == F32 || gemm.kind == BF16) return multiply_float(gemm, block);
    multiply_quantised(gemm, block);
}

void gemm(const Parallel& parallel, const Gemm& gemm) {
    GemmJob job{&gemm, 0, 0, 0, divide_up(gemm.n, PANEL), parallel.threads};
    // A block of rows stays in the core's own cache (256 KiB of it) while the panels pass.
    int most = (256 << 10) / row_bytes(gemm);
    if (most < 2 * ROW_STEP) most = 2 * ROW_STEP;
    if (most > MOST_BLOCK_ROWS) most = MOST_BLOCK_ROWS;
    const int blocks = divide_up(gemm.rows, most / ROW_STEP * ROW_STEP);
    job.block_rows = divide_up(divide_up(gemm.rows, blocks), ROW_STEP) * ROW_STEP;
    job.row_blocks = divide_up(gemm.rows, job.block_rows);
    job.chunk_panels = job.panels / (parallel.threads * 8);
    if (job.chunk_panels < 1) job.chunk_panels = 1;
    const int chunks = divide_up(job.panels, job.chunk_panels);
    parallel.run(parallel.pool, run_item, &job, chunks * job.row_blocks);
}

}  // namespace octavo::OCTAVO_VARIANT
