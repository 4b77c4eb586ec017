// How a product is cut into blocks, and which code multiplies them.
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

// Rows of a block, of which there are several if it does not stay in the core's own cache while the panels pass: a
// multiple of every tile's rows.
struct BlockRows {
    int step, most, bytes;
};

constexpr BlockRows FEW_ROWS{24, 192, 256 << 10};
#if defined(__AMX_TILE__)
// Weights are unpacked once for all the rows; these cores have 2 MiB.
constexpr BlockRows QUANTISED_ROWS{32, MOST_BLOCK_ROWS, 1 << 20};
#else
constexpr BlockRows QUANTISED_ROWS = FEW_ROWS;
#endif

bool is_quantised(const Gemm& gemm) { return gemm.kind == U8 || gemm.kind == U4; }

int count_blocks(const Gemm& gemm, const BlockRows& block) {
    int most = block.bytes / (gemm.k * (gemm.kind == F32 ? 4 : 2));
    if (most < 2 * block.step) most = 2 * block.step;
    if (most > block.most) most = block.most;
    return divide_up(gemm.rows, most / block.step * block.step);
}

struct GemmJob {
    const Gemm* gemm;
    int block_rows, row_blocks, chunk_panels, panels;
};

#if defined(__AMX_TILE__)
bool uses_tiles(const Gemm& gemm, const Block& block) {
    return gemm.kind == BF16 || (is_quantised(gemm) && block.end_row - block.row >= AMX_QUANT_ROWS);
}
#endif

// The calling thread multiplies the rows of a block by its panels, and writes the results.
void multiply_block(const Gemm& gemm, const Block& block) {
#if defined(__AMX_TILE__)
    if (uses_tiles(gemm, block))
        return is_quantised(gemm) ? multiply_quantised_amx(gemm, block) : multiply_bf16_amx(gemm, block);
#endif
    is_quantised(gemm) ? multiply_quantised(gemm, block) : multiply_float(gemm, block);
}

Block block_of(const GemmJob& job, int row_block, int chunk) {
    Block block;
    block.row = row_block * job.block_rows;
    block.end_row = block.row + job.block_rows < job.gemm->rows ? block.row + job.block_rows : job.gemm->rows;
    block.panel = chunk * job.chunk_panels;
    block.end_panel = block.panel + job.chunk_panels < job.panels ? block.panel + job.chunk_panels : job.panels;
    block.next_panel = -1;
    return block;
}

void run_item(void* job_pointer, int index, int) {
    const GemmJob& job = *static_cast<const GemmJob*>(job_pointer);
    // Row blocks change fastest: a chunk of the weights is read once while all rows pass.
    Block block = block_of(job, index % job.row_blocks, index / job.row_blocks);
    // A thread's items follow each other.
    block.next_panel = (index + 1) / job.row_blocks * job.chunk_panels;
    if (block.next_panel >= job.panels) block.next_panel = -1;
    multiply_block(*job.gemm, block);
}

#if defined(__AMX_TILE__)
static_assert(QUANTISED_ROWS.step == PASS_ROWS);  // a block has whole passes, but for the last one

void gather_item(void* job_pointer, int index, int) {
    const GemmJob& job = *static_cast<const GemmJob*>(job_pointer);
    const int row = index * PASS_ROWS;
    const Block block = block_of(job, row / job.block_rows, 0);
    if (uses_tiles(*job.gemm, block)) gather_high_rows(*job.gemm, block, (row - block.row) / PASS_ROWS);
}
#endif

}  // namespace

void gemm(const Parallel& parallel, const Gemm& gemm) {
    GemmJob job{&gemm, 0, 0, 0, divide_up(gemm.n, PANEL)};
    const BlockRows& rows = is_quantised(gemm) ? QUANTISED_ROWS : FEW_ROWS;
    job.block_rows = divide_up(divide_up(gemm.rows, count_blocks(gemm, rows)), rows.step) * rows.step;
    job.row_blocks = divide_up(gemm.rows, job.block_rows);
    // Equal shares; of few rows reading is the work, and fewer items read on longer.
    job.chunk_panels = divide_up(job.panels, parallel.threads * (gemm.rows < 4 ? 4 : 8));
    const int chunks = divide_up(job.panels, job.chunk_panels);
#if defined(__AMX_TILE__)
    if (is_quantised(gemm)) parallel.run(parallel.pool, gather_item, &job, divide_up(gemm.rows, PASS_ROWS));
#endif
    parallel.run(parallel.pool, run_item, &job, chunks * job.row_blocks);
}

}  // namespace octavo::OCTAVO_VARIANT
