// Sixteen lanes in two AVX2 registers.
#pragma once
#include <immintrin.h>

namespace octavo::OCTAVO_VARIANT {
namespace {

struct F {
    __m256 low, high;
};
struct I {
    __m256i low, high;
};
constexpr int TILE_VECTORS = 1;
constexpr int QUANT_ROWS = 2, FLOAT_ROWS = 4;
constexpr int MOST_TILE_ROWS = 4;
constexpr int ATTENTION_CHUNK = 4, SCORE_BLOCKS = 1, VALUE_VECTORS = 1;

INLINE __m256i first8(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE F set1(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
INLINE F load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
INLINE F load_first(const float* from, int count) {
    return {_mm256_maskload_ps(from, first8(count)), _mm256_maskload_ps(from + 8, first8(count - 8))};
}
INLINE void store(float* to, F value) {
    _mm256_storeu_ps(to, value.low);
    _mm256_storeu_ps(to + 8, value.high);
}
INLINE void store_first(float* to, F value, int count) {
    _mm256_maskstore_ps(to, first8(count), value.low);
    _mm256_maskstore_ps(to + 8, first8(count - 8), value.high);
}
INLINE F add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
INLINE F sub(F a, F b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
INLINE F mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
INLINE F div(F a, F b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
INLINE F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)}; }
INLINE F mul_add(F a, F b, F c) { return fma(a, b, c); }
INLINE F max(F a, F b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
INLINE F min(F a, F b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
INLINE F zero_below(F value, F a, F limit) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(a.low, limit.low, _CMP_LT_OQ), value.low),
            _mm256_andnot_ps(_mm256_cmp_ps(a.high, limit.high, _CMP_LT_OQ), value.high)};
}
INLINE F keep_between(F value, int low, int high, F other) {
    const __m256 left = _mm256_castsi256_ps(_mm256_andnot_si256(first8(low), first8(high)));
    const __m256 right = _mm256_castsi256_ps(_mm256_andnot_si256(first8(low - 8), first8(high - 8)));
    return {_mm256_blendv_ps(other.low, value.low, left), _mm256_blendv_ps(other.high, value.high, right)};
}
INLINE float square_root(float value) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(value))); }

INLINE I zero_int() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
INLINE I set1_int(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
INLINE I load_int(const void* from) {
    const __m256i* both = static_cast<const __m256i*>(from);
    return {_mm256_loadu_si256(both), _mm256_loadu_si256(both + 1)};
}
INLINE I broadcast4(const void* from) {
    int32_t four;
    memcpy(&four, from, 4);
    return set1_int(four);
}
INLINE I add_int(I a, I b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
INLINE I sub_int(I a, I b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
INLINE I max_int(I a, I b) { return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)}; }
INLINE I shift_left(I a, int bits) { return {_mm256_slli_epi32(a.low, bits), _mm256_slli_epi32(a.high, bits)}; }
INLINE I shift_right(I a, int bits) { return {_mm256_srai_epi32(a.low, bits), _mm256_srai_epi32(a.high, bits)}; }
INLINE I and_int(I a, I b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
INLINE I or_int(I a, I b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
INLINE F as_float(I a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }
INLINE I as_int(F a) { return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)}; }
INLINE F to_float(I a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
INLINE I round_int(F a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
INLINE I truncate_int(F a) { return {_mm256_cvttps_epi32(a.low), _mm256_cvttps_epi32(a.high)}; }
// Writes the lanes of at least `limit` and their ids next to each other; how many.
INLINE int keep_from(F a, F limit, I ids, float* values, int32_t* kept) {
    unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a.low, limit.low, _CMP_GE_OQ))) |
                    static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a.high, limit.high, _CMP_GE_OQ))) << 8;
    if (mask == 0) return 0;
    float from[16];
    int32_t id[16];
    memcpy(from, &a, sizeof from);
    memcpy(id, &ids, sizeof id);
    int count = 0;
    for (; mask; mask &= mask - 1, ++count) {
        const int lane = __builtin_ctz(mask);
        values[count] = from[lane];
        kept[count] = id[lane];
    }
    return count;
}

INLINE bool any(I a) {
    const __m256i both = _mm256_or_si256(a.low, a.high);
    return _mm256_testz_si256(both, both) == 0;
}

INLINE F load_half(const uint16_t* from) {
    const __m128i* both = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(both)), _mm256_cvtph_ps(_mm_loadu_si128(both + 1))};
}
// The lowest bytes of the lanes.
INLINE void store_int8(int8_t* to, I value) {
    const __m256i none = _mm256_set1_epi8(-1);
    const __m256i first = _mm256_blend_epi32(none, _mm256_set1_epi32(0x0c080400), 0x11);
    const __m256i second = _mm256_blend_epi32(none, _mm256_set1_epi32(0x0c080400), 0x22);
    // Fours 0 and 2 in the lower half, 1 and 3 in the upper one.
    const __m256i fours =
        _mm256_or_si256(_mm256_shuffle_epi8(value.low, first), _mm256_shuffle_epi8(value.high, second));
    const __m128i all = _mm_unpacklo_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), all);
}
// The lower halves of the lanes.
INLINE void store_uint16(uint16_t* to, I value) {
    const __m256i half = _mm256_set1_epi32(0xffff);
    const __m256i both = _mm256_packus_epi32(_mm256_and_si256(value.low, half), _mm256_and_si256(value.high, half));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(both, 0xd8));
}
INLINE void store_int(void* to, I value) { memcpy(to, &value, sizeof value); }
INLINE I low_nibbles(I bytes) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(bytes.low, mask), _mm256_and_si256(bytes.high, mask)};
}
INLINE I high_nibbles(I bytes) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(bytes.low, 4), mask),
            _mm256_and_si256(_mm256_srli_epi16(bytes.high, 4), mask)};
}

INLINE __m256i level_bytes_of(__m256i step, __m256i base) {
    // Quants 0, 2, ... 14 and 1, 3, ... 15, times 16.
    const __m256i evens = _mm256_set_epi16(224, 192, 160, 128, 96, 64, 32, 0, 224, 192, 160, 128, 96, 64, 32, 0);
    const __m256i odds = _mm256_add_epi16(evens, _mm256_set1_epi16(16));
    const __m256i even = _mm256_add_epi16(_mm256_mullo_epi16(step, evens), base);
    const __m256i odd = _mm256_add_epi16(_mm256_mullo_epi16(step, odds), base);
    return _mm256_or_si256(_mm256_srli_epi16(even, 8), _mm256_andnot_si256(_mm256_set1_epi16(0x00ff), odd));
}
// In each of four 128-bit lanes the bytes that the 16 values of a quant stand for: the upper ones of 16 * step * quant
// + base. steps [4], bases [4], uint16: of a lane each.
INLINE I level_bytes(const uint8_t* steps, const uint8_t* bases) {
    int32_t four_steps;
    int64_t four_bases;
    memcpy(&four_steps, steps, 4);
    memcpy(&four_bases, bases, 8);
    const __m256i step = _mm256_set1_epi32(four_steps), base = _mm256_set1_epi64x(four_bases);
    const __m256i low_steps =
        _mm256_set_epi64x(-0x7ffe7ffe7ffe7fff, -0x7ffe7ffe7ffe7fff, -0x7fff7fff7fff8000, -0x7fff7fff7fff8000);
    const __m256i high_steps =
        _mm256_set_epi64x(-0x7ffc7ffc7ffc7ffd, -0x7ffc7ffc7ffc7ffd, -0x7ffd7ffd7ffd7ffe, -0x7ffd7ffd7ffd7ffe);
    const __m256i low_bases =
        _mm256_set_epi64x(0x0302030203020302, 0x0302030203020302, 0x0100010001000100, 0x0100010001000100);
    const __m256i high_bases = _mm256_add_epi8(low_bases, _mm256_set1_epi8(4));
    return {level_bytes_of(_mm256_shuffle_epi8(step, low_steps), _mm256_shuffle_epi8(base, low_bases)),
            level_bytes_of(_mm256_shuffle_epi8(step, high_steps), _mm256_shuffle_epi8(base, high_bases))};
}
// In each lane the bytes at the places that `quants` have.
INLINE I look_up(I bytes, I quants) {
    return {_mm256_shuffle_epi8(bytes.low, quants.low), _mm256_shuffle_epi8(bytes.high, quants.high)};
}
// Sixteen bytes in every lane.
INLINE I broadcast16(const void* from) {
    const __m256i two = _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(from)));
    return {two, two};
}
// In every lane the first or last two numbers of a and b, or halves of eight bytes, in turn.
INLINE I zip_low(I a, I b) { return {_mm256_unpacklo_epi32(a.low, b.low), _mm256_unpacklo_epi32(a.high, b.high)}; }
INLINE I zip_high(I a, I b) { return {_mm256_unpackhi_epi32(a.low, b.low), _mm256_unpackhi_epi32(a.high, b.high)}; }
INLINE I join_low(I a, I b) { return {_mm256_unpacklo_epi64(a.low, b.low), _mm256_unpacklo_epi64(a.high, b.high)}; }
INLINE I join_high(I a, I b) { return {_mm256_unpackhi_epi64(a.low, b.low), _mm256_unpackhi_epi64(a.high, b.high)}; }

// Products of bytes: vpmaddubsw adds two in 16 bits and saturates there, so what is added must be kept small.
//   BYTES up to 63: 2 * 63 * 127 fits, and is widened at once.
//   BYTES from 1 to 255: the weights are taken less 128, with the signs of x, and x as magnitudes; 2 * 127 * 127 fits.
constexpr bool WEIGHTS_LESS_128 = true;
INLINE I add_pairs(I a) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(a.low, ones), _mm256_madd_epi16(a.high, ones)};
}
INLINE I dot4_small(I sum, I weights, I x) {
    return add_int(sum,
                   add_pairs({_mm256_maddubs_epi16(weights.low, x.low), _mm256_maddubs_epi16(weights.high, x.high)}));
}
INLINE I less_128(I weights) {
    const __m256i less = _mm256_set1_epi8(-128);
    return {_mm256_xor_si256(weights.low, less), _mm256_xor_si256(weights.high, less)};
}
INLINE I dot4_less_128(I sum, I w, I x) {
    return dot4_small(sum, {_mm256_abs_epi8(x.low), _mm256_abs_epi8(x.high)},
                      {_mm256_sign_epi8(w.low, x.low), _mm256_sign_epi8(w.high, x.high)});
}
INLINE I dot4(I sum, I weights, I x) { return dot4_less_128(sum, less_128(weights), x); }
INLINE F dot2(F sum, I weights, I x) {
    const I upper = set1_int(static_cast<int32_t>(0xffff0000u));
    sum = fma(as_float(shift_left(weights, 16)), as_float(shift_left(x, 16)), sum);
    return fma(as_float(and_int(weights, upper)), as_float(and_int(x, upper)), sum);
}

INLINE float sum_lanes(F a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
INLINE float max_lanes(F a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}
INLINE int32_t max_lanes_int(I a) {
    const __m256i eight = _mm256_max_epi32(a.low, a.high);
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
INLINE int32_t sum_lanes_int(I a) {
    const __m256i eight = _mm256_add_epi32(a.low, a.high);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

}  // namespace
}  // namespace octavo::OCTAVO_VARIANT
