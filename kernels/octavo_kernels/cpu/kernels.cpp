#include "kernels.hpp"

namespace octavo {

int64_t attention_scratch_floats(int head_dim) {
    const int padded = (head_dim + 63) / 64 * 64, row = PARTITION_TOKENS + padded + PARTITION_TOKENS / 2 + 2 * PARTITION_TOKENS + 3;
    return ATTENTION_ROWS * (row + 2 * (head_dim + 2)) + PARTITION_TOKENS / 4 * (head_dim + 4);
}

}  // namespace octavo
