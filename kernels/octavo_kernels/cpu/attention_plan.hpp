// What attention needs to know of a step, worked out once for all layers alike.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runner.hpp"
#include "shared_prefix.hpp"

namespace octavo {

// How one layer's blocks lie in memory. Throws std::invalid_argument for sizes that the kernels do not have.
struct CacheLayout {
    CacheKind kind;
    int kv_heads, head_dim;

    CacheLayout(const std::string& dtype, int kv_heads, int head_dim);
    std::size_t block_bytes() const;
};

// The queries of a step, sequence after sequence, and the blocks that each sequence has.
struct StepRows {
    const std::int32_t* positions;        // [tokens]
    const std::int32_t* row_offsets;      // [rows + 1]
    const std::int32_t* context_lengths;  // [rows]
    const std::int32_t* block_tables;     // [rows, max_blocks]
    std::size_t tokens, rows, max_blocks;
};

// What the layers share that have the same block tables, window and query heads per key/value head.
struct AttentionPlan {
    // Throws std::invalid_argument if a row or its table is not as it must be.
    AttentionPlan(const StepRows& step, int window, int group);

    StepRows step;
    int window, group;
    std::vector<QueryTile> tiles;
    SharedPrefixes prefixes;    // of full attention: behind a window blocks may be gone
    int max_partitions = 1;     // of any tile
    int shared_partitions = 0;  // the same, of those attended together
    std::size_t blocks_seen = 0;  // one more than the highest block that a query sees: the cache has at least as many
};

// out = attention of q, both [tokens, heads, head_dim]. The caller holds the pool's mutex.
void run_attention(Runner& runner, const AttentionPlan& plan, const Cache& cache, const float* q, float scale,
                   float softcap, float* out);

}  // namespace octavo
