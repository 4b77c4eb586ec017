// Sixteen lanes in the compiler's own vectors, for every other machine. Correct first: it is what remains when nothing
// faster can run.
#pragma once
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace octavo::OCTAVO_VARIANT {
namespace {

typedef float F __attribute__((vector_size(64)));
typedef int32_t I __attribute__((vector_size(64)));
constexpr int TILE_VECTORS = 1;
constexpr int QUANT_ROWS = 2, FLOAT_ROWS = 2;
constexpr int MOST_TILE_ROWS = 2;
constexpr int ATTENTION_CHUNK = 4, SCORE_BLOCKS = 1, VALUE_VECTORS = 1;

INLINE F zero() { return F{}; }
INLINE F set1(float value) { return F{} + value; }
INLINE F load(const float* from) {
    F result;
    memcpy(&result, from, sizeof result);
    return result;
}
INLINE F load_first(const float* from, int count) {
    F result = {};
    for (int i = 0; i < 16 && i < count; ++i) result[i] = from[i];
    return result;
}
INLINE void store(float* to, F value) { memcpy(to, &value, sizeof value); }
INLINE void store_first(float* to, F value, int count) {
    for (int i = 0; i < 16 && i < count; ++i) to[i] = value[i];
}
INLINE F add(F a, F b) { return a + b; }
INLINE F sub(F a, F b) { return a - b; }
INLINE F mul(F a, F b) { return a * b; }
INLINE F div(F a, F b) { return a / b; }
INLINE F fma(F a, F b, F c) {
    F result;
    for (int i = 0; i < 16; ++i) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return result;
}
INLINE F mul_add(F a, F b, F c) { return a * b + c; }
INLINE F choose(I mask, F yes, F no) {
    return reinterpret_cast<F>((mask & reinterpret_cast<I>(yes)) | (~mask & reinterpret_cast<I>(no)));
}
INLINE F max(F a, F b) { return choose(a > b, a, b); }
INLINE F min(F a, F b) { return choose(a < b, a, b); }
INLINE F zero_below(F value, F a, F limit) { return choose(a < limit, F{}, value); }
INLINE F keep_between(F value, int low, int high, F other) {
    const I lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return choose((lanes >= low) & (lanes < high), value, other);
}
INLINE float square_root(float value) { return __builtin_sqrtf(value); }

INLINE I zero_int() { return I{}; }
INLINE I set1_int(int32_t value) { return I{} + value; }
INLINE I load_int(const void* from) {
    I result;
    memcpy(&result, from, sizeof result);
    return result;
}
INLINE I broadcast4(const void* from) {
    int32_t four;
    memcpy(&four, from, 4);
    return set1_int(four);
}
INLINE I add_int(I a, I b) { return a + b; }
INLINE I sub_int(I a, I b) { return a - b; }
INLINE I max_int(I a, I b) {
    const I more = a > b;
    return (more & a) | (~more & b);
}
INLINE I shift_left(I a, int bits) { return a << bits; }
INLINE I shift_right(I a, int bits) { return a >> bits; }
INLINE I and_int(I a, I b) { return a & b; }
INLINE I or_int(I a, I b) { return a | b; }
INLINE F as_float(I a) { return reinterpret_cast<F>(a); }
INLINE I as_int(F a) { return reinterpret_cast<I>(a); }
INLINE F to_float(I a) { return __builtin_convertvector(a, F); }
// To nearest even, for magnitudes below 2^22.
INLINE I round_int(F a) {
    const F magic = set1(12582912.0f);
    return as_int(a + magic) - as_int(magic);
}
INLINE I truncate_int(F a) { return __builtin_convertvector(a, I); }
// Writes the lanes of at least `limit` and their ids next to each other; how many.
INLINE int keep_from(F a, F limit, I ids, float* values, int32_t* kept) {
    const I mask = a >= limit;
    int count = 0;
    for (int lane = 0; lane < 16; ++lane) {
        if (mask[lane] == 0) continue;
        values[count] = a[lane];
        kept[count++] = ids[lane];
    }
    return count;
}

INLINE bool any(I a) {
    int32_t bits = 0;
    for (int i = 0; i < 16; ++i) bits |= a[i];
    return bits != 0;
}

INLINE float half_to_float(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    uint32_t bits;
    if (magnitude >= 0x7c00u) {
        bits = sign | 0x7f800000u | (magnitude & 0x3ffu) << 13;
    } else if (magnitude >= 0x400u) {
        bits = sign | ((magnitude << 13) + 0x38000000u);
    } else {
        const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
        memcpy(&bits, &value, 4);
        bits |= sign;
    }
    float result;
    memcpy(&result, &bits, 4);
    return result;
}
INLINE F load_half(const uint16_t* from) {
    F result;
    for (int i = 0; i < 16; ++i) result[i] = half_to_float(from[i]);
    return result;
}
INLINE void store_int8(int8_t* to, I value) {
    for (int i = 0; i < 16; ++i) to[i] = static_cast<int8_t>(value[i]);
}
INLINE void store_uint16(uint16_t* to, I value) {
    for (int i = 0; i < 16; ++i) to[i] = static_cast<uint16_t>(value[i]);
}
INLINE void store_int(void* to, I value) { memcpy(to, &value, sizeof value); }
INLINE I low_nibbles(I bytes) { return bytes & 0x0f0f0f0f; }
INLINE I high_nibbles(I bytes) { return (bytes >> 4) & 0x0f0f0f0f; }

// In each of four lanes of 16 bytes the bytes that the 16 values of a quant stand for: the upper ones of 16 * step *
// quant + base. steps [4], bases [4], uint16: of a lane each.
INLINE I level_bytes(const uint8_t* steps, const uint8_t* bases) {
    uint8_t bytes[64];
    for (int i = 0; i < 64; ++i) {
        const int base = bases[i / 16 * 2] | bases[i / 16 * 2 + 1] << 8;
        bytes[i] = static_cast<uint8_t>((16 * steps[i / 16] * (i % 16) + base) >> 8);
    }
    return load_int(bytes);
}
// In each lane the bytes at the places that `quants` have.
INLINE I look_up(I bytes, I quants) {
    uint8_t from[64], at[64], found[64];
    memcpy(from, &bytes, 64);
    memcpy(at, &quants, 64);
    for (int i = 0; i < 64; ++i) found[i] = from[i / 16 * 16 + at[i]];
    return load_int(found);
}
// Sixteen bytes in every lane.
INLINE I broadcast16(const void* from) {
    I result;
    for (int lane = 0; lane < 4; ++lane) memcpy(reinterpret_cast<char*>(&result) + lane * 16, from, 16);
    return result;
}
// In every lane the first or last two numbers of a and b, or halves of eight bytes, in turn.
INLINE I zip_low(I a, I b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
INLINE I zip_high(I a, I b) {
    return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
INLINE I join_low(I a, I b) {
    return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
INLINE I join_high(I a, I b) {
    return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

INLINE I dot4(I sum, I weights, I x) {
#if defined(__SSE2__)
    __m128i s[4], w[4], a[4];
    memcpy(s, &sum, 64);
    memcpy(w, &weights, 64);
    memcpy(a, &x, 64);
    for (int i = 0; i < 4; ++i) {
        const __m128i even =
            _mm_madd_epi16(_mm_and_si128(w[i], _mm_set1_epi16(255)), _mm_srai_epi16(_mm_slli_epi16(a[i], 8), 8));
        const __m128i odd = _mm_madd_epi16(_mm_srli_epi16(w[i], 8), _mm_srai_epi16(a[i], 8));
        s[i] = _mm_add_epi32(s[i], _mm_add_epi32(even, odd));
    }
    memcpy(&sum, s, 64);
    return sum;
#else
    for (int byte = 0; byte < 4; ++byte) sum += ((weights >> (8 * byte)) & 255) * ((x << (24 - 8 * byte)) >> 24);
    return sum;
#endif
}
constexpr bool WEIGHTS_LESS_128 = false;
INLINE I dot4_small(I sum, I weights, I x) { return dot4(sum, weights, x); }
INLINE I less_128(I weights) { return weights; }
INLINE I dot4_less_128(I sum, I weights, I x) { return dot4(sum, weights, x); }

INLINE F dot2(F sum, I weights, I x) {
    const I upper = set1_int(static_cast<int32_t>(0xffff0000u));
    sum = mul_add(as_float(shift_left(weights, 16)), as_float(shift_left(x, 16)), sum);
    return mul_add(as_float(and_int(weights, upper)), as_float(and_int(x, upper)), sum);
}

INLINE float sum_lanes(F a) {
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; ++i) a[i] += a[i + width];
    return a[0];
}
INLINE float max_lanes(F a) {
    float result = a[0];
    for (int i = 1; i < 16; ++i) result = a[i] > result ? a[i] : result;
    return result;
}
INLINE int32_t max_lanes_int(I a) {
    int32_t result = a[0];
    for (int i = 1; i < 16; ++i) result = a[i] > result ? a[i] : result;
    return result;
}
INLINE int32_t sum_lanes_int(I a) {
    int32_t result = 0;
    for (int i = 0; i < 16; ++i) result += a[i];
    return result;
}

}  // namespace
}  // namespace octavo::OCTAVO_VARIANT
