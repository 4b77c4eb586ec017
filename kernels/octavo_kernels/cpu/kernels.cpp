#include "kernels.hpp"

namespace octavo {

int64_t attention_scratch_floats(int head_dim) {
    const int padded = (head_dim + 63) / 64 * 64,
              row = PARTITION_TOKENS + padded + PARTITION_TOKENS / 2 + 2 * PARTITION_TOKENS + 3;
    return ATTENTION_ROWS * (row + 2 * (head_dim + 2)) + PARTITION_TOKENS / 4 * (head_dim + 4);
}

int64_t gemm_scratch_bytes(WeightKind kind, int rows, int k) {
    if (kind != U8 && kind != U4) return 0;
    const int groups = k / GROUP, chunks = (groups + chunk_groups(groups) - 1) / chunk_groups(groups);
    // Of each row at most a tile more than its features.
    const int64_t passes = (rows + PASS_ROWS - 1) / PASS_ROWS, row = k + chunks * 64;
    return (passes * chunks * HIGH_PART_BYTES + passes * PASS_ROWS * row + 127) / 64 * 64;
}

}  // namespace octavo
