#include "kernels.hpp"

namespace octavo {

int64_t attention_scratch_floats(int head_dim) {
    return ATTENTION_ROWS * (PARTITION_TOKENS + head_dim + 4 + PARTITION_TOKENS / 2 + 2 * (head_dim + 2));
}

}  // namespace octavo
