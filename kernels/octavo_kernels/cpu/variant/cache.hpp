// Where a head's keys and values lie in a block (see Cache in kernels.hpp).
#pragma once
#include "math.hpp"

namespace octavo::OCTAVO_VARIANT {

struct HeadBlock {
    uint8_t* keys;
    uint8_t* values;
    float* key_scales;  // of an int8 cache
    float* value_scales;
};

namespace {

INLINE int element_bytes(CacheKind kind) { return kind == CACHE_F32 ? 4 : kind == CACHE_BF16 ? 2 : 1; }

INLINE HeadBlock head_block(const Cache& cache, int64_t block, int kv_head) {
    const int64_t plane = static_cast<int64_t>(cache.head_dim) * BLOCK_TOKENS * element_bytes(cache.kind);
    const int64_t scales = cache.kind == CACHE_INT8 ? BLOCK_TOKENS * sizeof(float) : 0;
    uint8_t* at = cache.data + block * cache.block_bytes + kv_head * 2 * (plane + scales);
    float* after = reinterpret_cast<float*>(at + 2 * plane);
    return {at, at + plane, after, after + BLOCK_TOKENS};
}

}  // namespace
}  // namespace octavo::OCTAVO_VARIANT
