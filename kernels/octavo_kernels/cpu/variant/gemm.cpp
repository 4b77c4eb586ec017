// How a product is cut into blocks, and which code multiplies them.
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int ROW_STEP = 24;  // a multiple of every tile's rows but those of U4 on AMX
constexpr int SPLIT_STEP = 32;

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

int row_bytes(const Gemm& gemm) {
    return gemm.k * (gemm.kind == F32 ? 4 : gemm.kind == BF16 || gemm.kind == U4 ? 2 : 1);
}

// Rows of a block: it stays in the core's own cache while the panels pass.
int most_rows(const Gemm& gemm) {
    int bytes = 256 << 10, most = 192;
#if defined(__AMX_TILE__)
    // Weights are unpacked once for all the rows; these cores have 2 MiB.
    if (gemm.kind == U4) bytes = 1 << 20, most = MOST_BLOCK_ROWS;
#endif
    const int rows = bytes / row_bytes(gemm);
    return rows < 2 * ROW_STEP ? 2 * ROW_STEP : rows < most ? rows : most;
}

}  // namespace

void multiply_block(const Gemm& gemm, const Block& block) {
#if defined(__AMX_TILE__)
    if (gemm.kind == BF16) return multiply_bf16_amx(gemm, block);
    if (gemm.kind == U4 && block.end_row - block.row >= AMX_SPLIT_ROWS) return multiply_split_amx(gemm, block);
    if (gemm.kind != F32 && gemm.kind != U4 && block.end_row - block.row >= AMX_QUANT_ROWS)
        return multiply_quantised_amx(gemm, block);
#endif
    if (gemm.kind == F32 || gemm.kind == BF16) return multiply_float(gemm, block);
    gemm.kind == U4 ? multiply_split(gemm, block) : multiply_quantised(gemm, block);
}

void gemm(const Parallel& parallel, const Gemm& gemm) {
    GemmJob job{&gemm, 0, 0, 0, divide_up(gemm.n, PANEL), parallel.threads};
    const int step = gemm.kind == U4 ? SPLIT_STEP : ROW_STEP;
    const int blocks = divide_up(gemm.rows, most_rows(gemm) / step * step);
    job.block_rows = divide_up(divide_up(gemm.rows, blocks), step) * step;
    job.row_blocks = divide_up(gemm.rows, job.block_rows);
    job.chunk_panels = job.panels / (parallel.threads * 8);
    if (job.chunk_panels < 1) job.chunk_panels = 1;
    const int chunks = divide_up(job.panels, job.chunk_panels);
    parallel.run(parallel.pool, run_item, &job, chunks * job.row_blocks);
}

}  // namespace octavo::OCTAVO_VARIANT
