// Norm of q and k, rotary embedding, and the write of k and v into the paged cache.
#include "cache.hpp"
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int MAX_HEAD_DIM = 512;

INLINE void normalize(const float* x, const float* weight, float eps, int width, float* out) {
    const F inverse_root = inverse_root_of_row(x, width, eps);
    for (int i = 0; i < width; i += 16) store(out + i, mul(mul(load(x + i), inverse_root), load(weight + i)));
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

// What makes a head's vector whole numbers of one scale, -127..127.
struct HeadScale {
    float scale, inverse;  // inverse: 0 where the vector is too small for one, or not finite

    I quantize(const float* x) const { return inverse == 0.0f ? zero_int() : round_int(mul(load(x), set1(inverse))); }
};

INLINE HeadScale scale_of(const float* x, int width) {
    I most = zero_int();
    for (int i = 0; i < width; i += 16) most = max_int(most, and_int(as_int(load(x + i)), set1_int(0x7fffffff)));
    const int32_t bits = max_lanes_int(most);
    float largest;
    memcpy(&largest, &bits, 4);
    const float inverse = 127.0f / largest;
    const bool empty = !(largest < __builtin_huge_valf()) || !(inverse < __builtin_huge_valf());
    return {largest / 127.0f, empty ? 0.0f : inverse};
}

INLINE void write_int8_key(const HeadBlock& at, int token, int width, const float* key) {
    int8_t quants[MAX_HEAD_DIM];
    const HeadScale scale = scale_of(key, width);
    at.key_scales[token] = scale.scale;
    for (int i = 0; i < width; i += 16) store_int8(quants + i, scale.quantize(key + i));
    for (int i = 0; i < width; i += 4) {
        uint32_t four;
        memcpy(&four, quants + i, 4);
        four ^= 0x80808080u;  // + 128 each
        memcpy(at.keys + i * BLOCK_TOKENS + token * 4, &four, 4);
    }
}

INLINE void write_int8_value(const HeadBlock& at, int token, int width, const float* value) {
    int8_t quants[MAX_HEAD_DIM];
    const HeadScale scale = scale_of(value, width);
    at.value_scales[token] = scale.scale;
    for (int i = 0; i < width; i += 16) store_int8(quants + i, scale.quantize(value + i));
    uint8_t* to = at.values + token / 4 * width * 4 + token % 4;
    for (int i = 0; i < width; ++i) to[i * 4] = static_cast<uint8_t>(quants[i]);
}

// The values of four tokens, the first of which is a multiple of four, are written as whole words.
INLINE void write_int8_values(const HeadBlock& at, int token, int width, const float* values, int64_t stride) {
    HeadScale scales[4];
    for (int t = 0; t < 4; ++t) {
        scales[t] = scale_of(values + t * stride, width);
        at.value_scales[token + t] = scales[t].scale;
    }
    float* to = reinterpret_cast<float*>(at.values + token * width);
    for (int i = 0; i < width; i += 16) {
        I words = shift_left(scales[3].quantize(values + 3 * stride + i), 24);
        for (int t = 0; t < 3; ++t) {
            const I byte = and_int(scales[t].quantize(values + t * stride + i), set1_int(255));
            words = or_int(words, shift_left(byte, 8 * t));
        }
        store(to + i, as_float(words));
    }
}

void write_key(const Cache& cache, int64_t slot, int kv_head, const float* key) {
    const int d = cache.head_dim, token = static_cast<int>(slot % BLOCK_TOKENS);
    const HeadBlock at = head_block(cache, slot / BLOCK_TOKENS, kv_head);
    if (cache.kind == CACHE_F32) {
        float* to = reinterpret_cast<float*>(at.keys) + token;
        for (int i = 0; i < d; ++i) to[i * BLOCK_TOKENS] = key[i];
    } else if (cache.kind == CACHE_BF16) {
        uint16_t halves[MAX_HEAD_DIM];
        for (int i = 0; i < d; i += 16) store_uint16(halves + i, round_to_bf16(load(key + i)));
        uint16_t* to = reinterpret_cast<uint16_t*>(at.keys) + token * 2;
        for (int i = 0; i < d; i += 2) memcpy(to + i * BLOCK_TOKENS, halves + i, 4);
    } else {
        write_int8_key(at, token, d, key);
    }
}

void write_value(const Cache& cache, int64_t slot, int kv_head, const float* value) {
    const int d = cache.head_dim, token = static_cast<int>(slot % BLOCK_TOKENS);
    const HeadBlock at = head_block(cache, slot / BLOCK_TOKENS, kv_head);
    if (cache.kind == CACHE_F32) {
        memcpy(reinterpret_cast<float*>(at.values) + token * d, value, static_cast<size_t>(d) * sizeof(float));
    } else if (cache.kind == CACHE_BF16) {
        uint16_t halves[MAX_HEAD_DIM];
        for (int i = 0; i < d; i += 16) store_uint16(halves + i, round_to_bf16(load(value + i)));
        uint16_t* to = reinterpret_cast<uint16_t*>(at.values) + token / 2 * d * 2 + token % 2;
        for (int i = 0; i < d; ++i) to[i * 2] = halves[i];
    } else {
        write_int8_value(at, token, d, value);
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
        write_key(job.cache, job.slots[token], h, rotated);
    }
}

// Write the values of a token, or of four that fill words of an int8 cache; returns of how many.
int run_values(const RopeCache& job, int token, int end) {
    const int d = job.cache.head_dim, kv_heads = job.cache.kv_heads;
    const int64_t stride = static_cast<int64_t>(job.heads + 2 * kv_heads) * d, slot = job.slots[token];
    if (slot < 0) return 1;
    const float* values = job.qkv + token * stride + (job.heads + kv_heads) * d;
    bool four = job.cache.kind == CACHE_INT8 && slot % 4 == 0 && token + 4 <= end;
    for (int t = 1; four && t < 4; ++t) four = job.slots[token + t] == slot + t;
    for (int h = 0; h < kv_heads; ++h) {
        if (four) {
            const HeadBlock at = head_block(job.cache, slot / BLOCK_TOKENS, h);
            write_int8_values(at, static_cast<int>(slot % BLOCK_TOKENS), d, values + h * d, stride);
        } else {
            write_value(job.cache, slot, h, values + h * d);
        }
    }
    return four ? 4 : 1;
}

struct Chunks {
    const RopeCache& job;
    int tokens;  // of each, about

    // Threads do not share a block, for then they would wait for each other's cache lines.
    int begin(int index) const {
        int token = index * tokens < job.tokens ? index * tokens : job.tokens;
        while (token > 0 && token < job.tokens && job.slots[token] % BLOCK_TOKENS != 0 &&
               job.slots[token] == job.slots[token - 1] + 1)
            ++token;
        return token;
    }
};

void run_chunk(void* pointer, int index, int) {
    const Chunks& chunks = *static_cast<const Chunks*>(pointer);
    const int begin = chunks.begin(index), end = chunks.begin(index + 1);
    for (int token = begin; token < end; ++token) run_token(chunks.job, token);
    for (int token = begin; token < end;) token += run_values(chunks.job, token, end);
}

constexpr int MOST_CHUNK_TOKENS = 32, LEAST_CHUNK_TOKENS = 2;

}  // namespace

void rope_cache(const Parallel& parallel, const RopeCache& job) {
    int tokens = job.tokens / (4 * parallel.threads);
    if (tokens > MOST_CHUNK_TOKENS) tokens = MOST_CHUNK_TOKENS;
    if (tokens < LEAST_CHUNK_TOKENS) tokens = LEAST_CHUNK_TOKENS;
    Chunks chunks{job, tokens};
    parallel.run(parallel.pool, run_chunk, &chunks, (job.tokens + tokens - 1) / tokens);
}

}  // namespace octavo::OCTAVO_VARIANT
