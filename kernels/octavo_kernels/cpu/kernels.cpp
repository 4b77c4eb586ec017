#include "kernels.hpp"

namespace octavo {

int64_t attention_scratch_floats(int head_dim) {
    return ATTENTION_ROWS * (head_dim + PARTITION_TOKENS + 2 * (head_dim + 2));
}

}  // namespace octavo
