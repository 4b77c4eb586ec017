// Sixteen lanes, whatever the registers' width: kernels are written once, and a lane's sums have the same order in
// every variant. `fma` rounds once everywhere; `mul_add` rounds as is fastest here.
#pragma once
#include <stdint.h>
#include <string.h>

#include "../kernels.hpp"

#ifndef OCTAVO_VARIANT
#error "compile with -DOCTAVO_VARIANT=<namespace of the instruction set>"
#endif
#define INLINE static inline __attribute__((always_inline))
// for (int i = 0; i < count; ++i), without the loop
#define UNROLLED(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); ++i)

#if defined(__AVX512BW__)
#include "simd_avx512.hpp"
#elif defined(__AVX2__)
#include "simd_avx2.hpp"
#else
#include "simd_portable.hpp"
#endif
