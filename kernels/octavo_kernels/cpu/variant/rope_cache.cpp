// Norm of q and k, rotary embedding, and the write of k and v into the paged cache.
#include "cache.hpp"
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int MAX_HEAD_DIM = 512;

INLINE void normalize(const float* x, const float* weight, float eps, int width, float* out) {
    F squares = zero();
    for (int i = 0; i < width; i += 16) squares = fma(load(x + i), load(x + i), squares);
    const F root = set1(square_root(sum_lanes(squares) / static_cast<float>(width) + eps));
    for (int i = 0; i < width; i += 16) store(out + i, mul(div(load(x + i), root), load(weight + i)));
}

// Rotate halves, each product and sum rounded on its own; dimensions from 2 * half on stay. out may be x.
INLINE void rotate(const float* x, const float* cos, const float* sin, int half, int width, float* out) {
    for (int i = 0; i < half; i += 16) {
        const int count = half - i;
        const F c = load_first(cos + i, count), s = load_first(sin + i, count);
        const F first = load_first(x + i, count), second = load_first(x + half + i, count);
        store_first(out + i, sub(mul(first, c), mul(second, s)), count);
        store_first(out + half + i, add(mul(second, c), mul(first, s)), count);
    }
    for (int i = 2 * half; i < width; i += 16) store_first(out + i, load_first(x + i, width - i), width - i);
}

// Quantise a head's vector with one scale, which is returned.
INLINE float quantize_head(const float* x, int width, int8_t* out) {
    I most = zero_int();
    for (int i = 0; i < width; i += 16) most = max_int(most, and_int(as_int(load(x + i)), set1_int(0x7fffffff)));
    const int32_t bits = max_lanes_int(most);
    float largest;
    memcpy(&largest, &bits, 4);
    const float inverse = 127.0f / largest;
    const bool empty = !(largest < __builtin_huge_valf()) || !(inverse < __builtin_huge_valf());
    for (int i = 0; i < width; i += 16)
        store_int8(out + i, empty ? zero_int() : round_int(mul(load(x + i), set1(inverse))));
    return largest / 127.0f;
}

void write_head(const Cache& cache, int64_t slot, int kv_head, const float* key, const float* value) {
    const int d = cache.head_dim, token = static_cast<int>(slot % BLOCK_TOKENS);
    const HeadBlock at = head_block(cache, slot / BLOCK_TOKENS, kv_head);
    if (cache.kind == CACHE_F32) {
        float* to_keys = reinterpret_cast<float*>(at.keys) + token;
        for (int i = 0; i < d; ++i) to_keys[i * BLOCK_TOKENS] = key[i];
        memcpy(reinterpret_cast<float*>(at.values) + token * d, value, static_cast<size_t>(d) * sizeof(float));
    } else if (cache.kind == CACHE_BF16) {
        uint16_t keys[MAX_HEAD_DIM], values[MAX_HEAD_DIM];
        for (int i = 0; i < d; i += 16) {
            store_uint16(keys + i, round_to_bf16(load(key + i)));
            store_uint16(values + i, round_to_bf16(load(value + i)));
        }
        uint16_t* to_keys = reinterpret_cast<uint16_t*>(at.keys) + token * 2;
        for (int i = 0; i < d; i += 2) memcpy(to_keys + i * BLOCK_TOKENS, keys + i, 4);
        uint16_t* to_values = reinterpret_cast<uint16_t*>(at.values) + token / 2 * d * 2 + token % 2;
        for (int i = 0; i < d; ++i) to_values[i * 2] = values[i];
    } else {
        int8_t keys[MAX_HEAD_DIM], values[MAX_HEAD_DIM];
        at.key_scales[token] = quantize_head(key, d, keys);
        at.value_scales[token] = quantize_head(value, d, values);
        for (int i = 0; i < d; i += 4) {
            uint32_t four;
            memcpy(&four, keys + i, 4);
            four ^= 0x80808080u;  // + 128 each
            memcpy(at.keys + i * BLOCK_TOKENS + token * 4, &four, 4);
        }
        uint8_t* to_values = at.values + token / 4 * d * 4 + token % 4;
        for (int i = 0; i < d; ++i) to_values[i * 4] = static_cast<uint8_t>(values[i]);
    }
}

void run_token(const RopeCache& job, int token) {
    const int d = job.cache.head_dim, kv_heads = job.cache.kv_heads;
    const float* in = job.qkv + static_cast<int64_t>(token) * (job.heads + 2 * kv_heads) * d;
    const float* cos = job.cos + static_cast<int64_t>(token) * job.half;
    const float* sin = job.sin + static_cast<int64_t>(token) * job.half;
    float normed[MAX_HEAD_DIM], rotated[MAX_HEAD_DIM];
    for (int h = 0; h < job.heads; ++h) {
        const float* q = in + h * d;
        if (job.q_norm) {
            normalize(q, job.q_norm, job.eps, d, normed);
            q = normed;
        }
        rotate(q, cos, sin, job.half, d, job.q_out + (static_cast<int64_t>(token) * job.heads + h) * d);
    }
    if (job.slots[token] < 0) return;
    for (int h = 0; h < kv_heads; ++h) {
        const float* k = in + (job.heads + h) * d;
        if (job.k_norm) {
            normalize(k, job.k_norm, job.eps, d, normed);
            k = normed;
        }
        rotate(k, cos, sin, job.half, d, rotated);
        write_head(job.cache, job.slots[token], h, rotated, in + (job.heads + kv_heads + h) * d);
    }
}

constexpr int CHUNK_TOKENS = 8;

}  // namespace

void rope_cache(const Parallel& parallel, const RopeCache& job) {
    auto call = [](void* pointer, int index, int) {
        const RopeCache& all = *static_cast<const RopeCache*>(pointer);
        for (int t = index * CHUNK_TOKENS; t < all.tokens && t < (index + 1) * CHUNK_TOKENS; ++t) run_token(all, t);
    };
    RopeCache copy = job;
    parallel.run(parallel.pool, call, &copy, (job.tokens + CHUNK_TOKENS - 1) / CHUNK_TOKENS);
}

}  // namespace octavo::OCTAVO_VARIANT
