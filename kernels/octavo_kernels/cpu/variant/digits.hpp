// Digits of fixed-point numbers, written as bytes.
#pragma once
#include "simd.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

// Numbers of 64 tokens, 0..16383 each, as their upper and lower seven bits.
INLINE void store_digits(uint8_t* upper, uint8_t* lower, const I (&whole)[4]) {
#if defined(__AVX512BW__)
    const I mask = _mm512_set1_epi16(127),
            order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const I left = _mm512_packs_epi32(whole[0], whole[1]), right = _mm512_packs_epi32(whole[2], whole[3]);
    const I high = _mm512_packus_epi16(_mm512_srli_epi16(left, 7), _mm512_srli_epi16(right, 7));
    const I low = _mm512_packus_epi16(_mm512_and_si512(left, mask), _mm512_and_si512(right, mask));
    _mm512_storeu_si512(upper, _mm512_permutexvar_epi32(order, high));
    _mm512_storeu_si512(lower, _mm512_permutexvar_epi32(order, low));
#elif defined(__AVX2__)
    const __m256i mask = _mm256_set1_epi16(127), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    UNROLLED(i, 2) {
        const __m256i left = _mm256_packs_epi32(whole[2 * i].low, whole[2 * i].high);
        const __m256i right = _mm256_packs_epi32(whole[2 * i + 1].low, whole[2 * i + 1].high);
        const __m256i high = _mm256_packus_epi16(_mm256_srli_epi16(left, 7), _mm256_srli_epi16(right, 7));
        const __m256i low = _mm256_packus_epi16(_mm256_and_si256(left, mask), _mm256_and_si256(right, mask));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(upper) + i, _mm256_permutevar8x32_epi32(high, order));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(lower) + i, _mm256_permutevar8x32_epi32(low, order));
    }
#else
    UNROLLED(i, 4) {
        store_int8(reinterpret_cast<int8_t*>(upper) + i * 16, shift_right(whole[i], 7));
        store_int8(reinterpret_cast<int8_t*>(lower) + i * 16, and_int(whole[i], set1_int(127)));
    }
#endif
}

}  // namespace
}  // namespace octavo::OCTAVO_VARIANT
