#include "attention_plan.hpp"

#include <algorithm>
#include <stdexcept>

namespace octavo {
namespace {

void require(bool fine, const std::string& otherwise) {
    if (!fine) throw std::invalid_argument(otherwise);
}

// Queries of a row are cut into tiles of as many as fill ATTENTION_ROWS with the heads of a group.
std::vector<QueryTile> cut_tiles(const StepRows& step, int group) {
    const int queries = std::max(1, ATTENTION_ROWS / group);
    std::vector<QueryTile> tiles;
    for (std::size_t row = 0; row < step.rows; ++row) {
        const int end = step.row_offsets[row + 1];
        for (int begin = step.row_offsets[row]; begin < end; begin += queries) {
            tiles.push_back({static_cast<std::int32_t>(row), begin, std::min(queries, end - begin)});
        }
    }
    return tiles;
}

// Every block that a row's queries see must be there: a wrong table would read another process's secrets or crash.
// Returns one more than the highest block.
std::size_t check_tables(const StepRows& step, int window) {
    require(step.row_offsets[0] == 0 && step.row_offsets[step.rows] == static_cast<int>(step.tokens),
            "row_offsets must begin with 0 and end with the number of tokens.");
    std::size_t blocks = 0;
    for (std::size_t row = 0; row < step.rows; ++row) {
        const int begin = step.row_offsets[row], end = step.row_offsets[row + 1], context = step.context_lengths[row];
        require(begin <= end, "row_offsets must not fall.");
        require(context <= static_cast<std::int64_t>(step.max_blocks) * BLOCK_TOKENS,
                "A context is longer than its block table.");
        int low = context, high = -1;
        for (int t = begin; t < end; ++t) {
            const int last = std::min(step.positions[t], context - 1);
            low = std::min(low, window && last >= window ? last - window + 1 : 0);
            high = std::max(high, last);
        }
        for (int block = low / BLOCK_TOKENS; block * BLOCK_TOKENS <= high; ++block) {
            const int physical = step.block_tables[row * step.max_blocks + static_cast<std::size_t>(block)];
            require(physical >= 0, "A block that a query sees is not in the cache.");
            blocks = std::max(blocks, static_cast<std::size_t>(physical) + 1);
        }
    }
    return blocks;
}

}  // namespace

CacheLayout::CacheLayout(const std::string& dtype, int kv_heads, int head_dim)
    : kind(dtype == "f32"    ? CACHE_F32
           : dtype == "bf16" ? CACHE_BF16
                             : CACHE_INT8),
      kv_heads(kv_heads),
      head_dim(head_dim) {
    require(dtype == "f32" || dtype == "bf16" || dtype == "int8",
            "The cache's type is f32, bf16 or int8, not " + dtype + ".");
    require(kv_heads > 0, "A cache has at least one key/value head.");
    require(head_dim > 0 && head_dim % 16 == 0 && head_dim <= 512,
            "A head of " + std::to_string(head_dim) + " dimensions is not supported: use a multiple of 16 up to 512.");
}

std::size_t CacheLayout::block_bytes() const {
    const std::size_t element = kind == CACHE_F32 ? 4 : kind == CACHE_BF16 ? 2 : 1;
    const std::size_t scales = kind == CACHE_INT8 ? 2 * BLOCK_TOKENS * sizeof(float) : 0;
    return static_cast<std::size_t>(kv_heads) *
           (2 * static_cast<std::size_t>(head_dim) * BLOCK_TOKENS * element + scales);
}

AttentionPlan::AttentionPlan(const StepRows& step, int window, int group)
    : step(step), window(window), group(group), blocks_seen(check_tables(step, window)) {
    tiles = cut_tiles(step, group);
    int longest = 1;
    for (std::size_t row = 0; row < step.rows; ++row) longest = std::max(longest, step.context_lengths[row]);
    max_partitions = (longest + PARTITION_TOKENS - 1) / PARTITION_TOKENS;
    if (window) return;
    prefixes =
        find_shared_prefixes(tiles, group, step.positions, step.context_lengths, step.block_tables, step.max_blocks);
    for (const QueryTile& tile : tiles) shared_partitions = std::max(shared_partitions, tile.shared);
}

void run_attention(Runner& runner, const AttentionPlan& plan, const Cache& cache, const float* q, float scale,
                   float softcap, float* out) {
    if (plan.tiles.empty()) return;
    Attention job{};
    job.q = q;
    job.out = out;
    job.positions = plan.step.positions;
    job.context_lengths = plan.step.context_lengths;
    job.block_tables = plan.step.block_tables;
    job.max_blocks = static_cast<std::int64_t>(plan.step.max_blocks);
    job.tiles = plan.tiles.data();
    job.num_tiles = static_cast<int>(plan.tiles.size());
    job.heads = plan.group * cache.kv_heads;
    job.shared = plan.prefixes.shared.data();
    job.shared_tiles = plan.prefixes.tiles.data();
    job.num_shared = static_cast<int>(plan.prefixes.shared.size());
    job.window = plan.window;
    job.scale = scale;
    job.softcap = softcap;
    job.cache = cache;

    const std::size_t items = plan.tiles.size() * static_cast<std::size_t>(cache.kv_heads) *
                              static_cast<std::size_t>((plan.group + ATTENTION_ROWS - 1) / ATTENTION_ROWS);
    const int threads = runner.pool.threads();
    // With few rows, the threads share a context's partitions.
    job.split = threads > 1 && plan.max_partitions > 1 && items < static_cast<std::size_t>(threads) * 4;
    job.stored_partitions = job.split ? plan.max_partitions : plan.shared_partitions;
    if (job.stored_partitions) {
        const std::size_t each = ATTENTION_ROWS * (static_cast<std::size_t>(cache.head_dim) + 2) * sizeof(float);
        job.partials = static_cast<float*>(
            runner.pool.workspace(Pool::PARTIALS, items * static_cast<std::size_t>(job.stored_partitions) * each));
    }
    // Whole cache lines for each thread.
    job.scratch_stride = (attention_scratch_floats(cache.head_dim) + 15) / 16 * 16;
    const std::size_t floats = static_cast<std::size_t>(threads) * static_cast<std::size_t>(job.scratch_stride);
    job.scratch = static_cast<float*>(runner.pool.workspace(Pool::SCRATCH, floats * sizeof(float)));
    runner.kernels.attention(runner.pool.parallel(), job);
}

}  // namespace octavo
