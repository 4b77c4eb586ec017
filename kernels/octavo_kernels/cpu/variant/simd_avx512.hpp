// Sixteen lanes in one AVX-512 register.
#pragma once
#include <immintrin.h>

namespace octavo::OCTAVO_VARIANT {
namespace {

using F = __m512;
using I = __m512i;
constexpr int TILE_VECTORS = 2;  // registers of 16 output features that a tile holds at once
constexpr int QUANT_ROWS = 6, FLOAT_ROWS = 8;
constexpr int MOST_TILE_ROWS = 8;
constexpr int AMX_QUANT_ROWS = 9;  // from so many rows on the tile registers are faster
constexpr int ATTENTION_CHUNK = 6, SCORE_BLOCKS = 4, VALUE_VECTORS = 4;

INLINE __mmask16 first(int count) {
    return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1);
}

INLINE F zero() { return _mm512_setzero_ps(); }
INLINE F set1(float value) { return _mm512_set1_ps(value); }
INLINE F load(const float* from) { return _mm512_loadu_ps(from); }
INLINE F load_first(const float* from, int count) { return _mm512_maskz_loadu_ps(first(count), from); }
INLINE void store(float* to, F value) { _mm512_storeu_ps(to, value); }
INLINE void store_first(float* to, F value, int count) { _mm512_mask_storeu_ps(to, first(count), value); }
INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
INLINE F mul_add(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
// Both return b where either is NaN.
INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
// 0 where a < limit, otherwise the value
INLINE F zero_below(F value, F a, F limit) {
    return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(a, limit, _CMP_LT_OQ), _mm512_setzero_ps());
}
// Lanes from low up to high keep their value, the others get `other`.
INLINE F keep_between(F value, int low, int high, F other) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>(first(high) & ~first(low)), other, value);
}
INLINE float square_root(float value) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(value))); }

INLINE I zero_int() { return _mm512_setzero_si512(); }
INLINE I set1_int(int32_t value) { return _mm512_set1_epi32(value); }
INLINE I load_int(const void* from) { return _mm512_loadu_si512(from); }
INLINE I broadcast4(const void* from) {
    int32_t four;
    memcpy(&four, from, 4);
    return _mm512_set1_epi32(four);
}
INLINE I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
INLINE I sub_int(I a, I b) { return _mm512_sub_epi32(a, b); }
INLINE I max_int(I a, I b) { return _mm512_max_epi32(a, b); }
INLINE I shift_left(I a, int bits) { return _mm512_slli_epi32(a, static_cast<unsigned>(bits)); }
INLINE I shift_right(I a, int bits) { return _mm512_srai_epi32(a, static_cast<unsigned>(bits)); }
INLINE I and_int(I a, I b) { return _mm512_and_si512(a, b); }
INLINE I or_int(I a, I b) { return _mm512_or_si512(a, b); }
INLINE F as_float(I a) { return _mm512_castsi512_ps(a); }
INLINE I as_int(F a) { return _mm512_castps_si512(a); }
INLINE F to_float(I a) { return _mm512_cvtepi32_ps(a); }
INLINE I round_int(F a) { return _mm512_cvtps_epi32(a); }
INLINE I truncate_int(F a) { return _mm512_cvttps_epi32(a); }
// Writes the lanes of at least `limit` and their ids next to each other (the rest of 16 is overwritten); how many.
INLINE int keep_from(F a, F limit, I ids, float* values, int32_t* kept) {
    const __mmask16 mask = _mm512_cmp_ps_mask(a, limit, _CMP_GE_OQ);
    if (mask == 0) return 0;
    _mm512_storeu_ps(values, _mm512_maskz_compress_ps(mask, a));
    _mm512_storeu_si512(kept, _mm512_maskz_compress_epi32(mask, ids));
    return __builtin_popcount(mask);
}

INLINE bool any(I a) { return _mm512_test_epi32_mask(a, a) != 0; }

INLINE F load_half(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
INLINE void store_int8(int8_t* to, I value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(value));
}
INLINE void store_uint16(uint16_t* to, I value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(value));
}
INLINE void store_int(void* to, I value) { _mm512_storeu_si512(to, value); }
INLINE I low_nibbles(I bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(15)); }
INLINE I high_nibbles(I bytes) { return _mm512_and_si512(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(15)); }

// In each of four 128-bit lanes the bytes that the 16 values of a quant stand for: the upper ones of 16 * step * quant
// + base. steps [4], bases [4], uint16: of a lane each.
INLINE I level_bytes(const uint8_t* steps, const uint8_t* bases) {
    int32_t four_steps;
    int64_t four_bases;
    memcpy(&four_steps, steps, 4);
    memcpy(&four_bases, bases, 8);
    const I step_places =
        _mm512_set_epi64(-0x7ffc7ffc7ffc7ffd, -0x7ffc7ffc7ffc7ffd, -0x7ffd7ffd7ffd7ffe, -0x7ffd7ffd7ffd7ffe,
                         -0x7ffe7ffe7ffe7fff, -0x7ffe7ffe7ffe7fff, -0x7fff7fff7fff8000, -0x7fff7fff7fff8000);
    const I base_places =
        _mm512_set_epi64(0x0706070607060706, 0x0706070607060706, 0x0504050405040504, 0x0504050405040504,
                         0x0302030203020302, 0x0302030203020302, 0x0100010001000100, 0x0100010001000100);
    const I step = _mm512_shuffle_epi8(_mm512_set1_epi32(four_steps), step_places);
    const I base = _mm512_shuffle_epi8(_mm512_set1_epi64(four_bases), base_places);
    // Quants 0, 2, ... 14 and 1, 3, ... 15, times 16.
    const I evens = _mm512_set4_epi32(0x00e000c0, 0x00a00080, 0x00600040, 0x00200000);
    const I odds = _mm512_add_epi16(evens, _mm512_set1_epi16(16));
    const I even = _mm512_add_epi16(_mm512_mullo_epi16(step, evens), base);
    const I odd = _mm512_add_epi16(_mm512_mullo_epi16(step, odds), base);
    // low bytes from even's upper ones, upper bytes from odd's
    return _mm512_ternarylogic_epi32(_mm512_srli_epi16(even, 8), odd, _mm512_set1_epi16(0x00ff), 0xe4);
}
// In each lane the bytes at the places that `quants` have.
INLINE I look_up(I bytes, I quants) { return _mm512_shuffle_epi8(bytes, quants); }
// Sixteen bytes in every lane.
INLINE I broadcast16(const void* from) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}
// In every lane the first or last two numbers of a and b, or halves of eight bytes, in turn.
INLINE I zip_low(I a, I b) { return _mm512_unpacklo_epi32(a, b); }
INLINE I zip_high(I a, I b) { return _mm512_unpackhi_epi32(a, b); }
INLINE I join_low(I a, I b) { return _mm512_unpacklo_epi64(a, b); }
INLINE I join_high(I a, I b) { return _mm512_unpackhi_epi64(a, b); }

// sum + the dot products of four unsigned bytes of `weights` with four signed bytes of `x`, per lane. Weights are 1 to
// 255 and x -127 to 127; with WEIGHTS_LESS_128 they are 128 less in the product. dot4_small takes weights up to 127.
// dot4_less_128 takes what less_128 makes of weights: their bytes, or a table's that they are looked up in.
#if defined(__AVX512VNNI__)
constexpr bool WEIGHTS_LESS_128 = false;
INLINE I dot4(I sum, I weights, I x) { return _mm512_dpbusd_epi32(sum, weights, x); }
INLINE I dot4_small(I sum, I weights, I x) { return _mm512_dpbusd_epi32(sum, weights, x); }
INLINE I less_128(I weights) { return weights; }
INLINE I dot4_less_128(I sum, I weights, I x) { return _mm512_dpbusd_epi32(sum, weights, x); }
#else
// vpmaddubsw adds two in 16 bits and saturates there: see simd_avx2.hpp for what is done about it.
constexpr bool WEIGHTS_LESS_128 = true;
INLINE I dot4_small(I sum, I weights, I x) {
    const I pairs = _mm512_maddubs_epi16(weights, x);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
INLINE I less_128(I weights) { return _mm512_xor_si512(weights, _mm512_set1_epi8(-128)); }
INLINE I dot4_less_128(I sum, I w, I x) {
    const I signed_w = _mm512_mask_sub_epi8(w, _mm512_movepi8_mask(x), _mm512_setzero_si512(), w);
    return dot4_small(sum, _mm512_abs_epi8(x), signed_w);
}
INLINE I dot4(I sum, I weights, I x) { return dot4_less_128(sum, less_128(weights), x); }
#endif
// sum + the products of two bfloat16 per lane
INLINE F dot2(F sum, I weights, I x) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(weights), reinterpret_cast<__m512bh>(x));
#else
    const I upper = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
    sum = fma(as_float(shift_left(weights, 16)), as_float(shift_left(x, 16)), sum);
    return fma(as_float(and_int(weights, upper)), as_float(and_int(x, upper)), sum);
#endif
}

INLINE float sum_lanes(F a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
INLINE float max_lanes(F a) { return _mm512_reduce_max_ps(a); }
INLINE int32_t max_lanes_int(I a) { return _mm512_reduce_max_epi32(a); }
INLINE int32_t sum_lanes_int(I a) { return _mm512_reduce_add_epi32(a); }

}  // namespace
}  // namespace octavo::OCTAVO_VARIANT
