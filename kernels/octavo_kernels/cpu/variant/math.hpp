// exp and what is made of it, with the same operations in every variant, so that results are the same.
#pragma once
#include "simd.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr float EXP_LOWEST = -87.3f;

// exp(x), about 1 ulp: exp(0) is exactly 1, below -87.3 it is exactly 0, above 88 it is exp(88), NaN stays NaN.
// 2^n by the exponent bits, the rest by a polynomial (minimax, degree 6, on +-ln(2) / 2).
INLINE F exponential(F x) {
    const F clamped = max(set1(EXP_LOWEST), min(set1(88.0f), x));
    const I n = round_int(mul(clamped, set1(1.44269504f)));
    const F whole = to_float(n);
    F r = fma(whole, set1(-0.693359375f), clamped);
    r = fma(whole, set1(2.12194440e-4f), r);
    F p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = add(fma(mul(r, r), p, r), set1(1.0f));
    const F power = as_float(shift_left(add_int(n, set1_int(127)), 23));
    return zero_below(mul(p, power), x, set1(EXP_LOWEST));
}

constexpr float LOG2_E = 1.44269504f;

// 2^x for x <= 126, about 2 ulp: 2^0 is exactly 1, below -100 it is 2^-100, NaN stays NaN. The whole part goes into the
// exponent's bits, the rest, within +-1/2, into a polynomial (minimax in relative error, with 1 as its constant).
INLINE F power_of_two(F x) {
    // Adding it leaves the nearest whole number and an exponent's bias in the lowest bits.
    const F magic = set1(12582912.0f + 127.0f);
    const F clamped = max(set1(-100.0f), x);
    const F shifted = add(clamped, magic);
    const F rest = sub(clamped, sub(shifted, magic));
    F p = set1(0.001326472731f);
    p = fma(p, rest, set1(0.009671512991f));
    p = fma(p, rest, set1(0.05550733581f));
    p = fma(p, rest, set1(0.2402224243f));
    p = fma(p, rest, set1(0.6931470037f));
    p = fma(p, rest, set1(1.0f));
    return mul(p, as_float(shift_left(as_int(shifted), 23)));
}

// x / (1 + 2^minus_t), where more than 2^126 counts as that
INLINE F sigmoid_times(F x, F minus_t) { return div(x, add(set1(1.0f), power_of_two(min(set1(126.0f), minus_t)))); }

INLINE F silu(F x) { return sigmoid_times(x, mul(x, set1(-LOG2_E))); }

// 1 - 2 / (exp(2x) + 1)
INLINE F hyperbolic_tangent(F x) { return sub(set1(1.0f), div(set1(2.0f), add(exponential(add(x, x)), set1(1.0f)))); }

// x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016), written as
// x / (1 + exp(-2u)): where tanh is near -1 the sum would cancel.
INLINE F gelu_tanh(F x) {
    const F cubed = mul(mul(x, x), x);
    const F minus_2u = mul(fma(cubed, set1(0.044715f), x), set1(-1.5957691216f));
    return sigmoid_times(x, mul(minus_2u, set1(LOG2_E)));
}

// The upper halves of float32, rounded to nearest even; what is not finite becomes NaN.
INLINE I round_to_bf16(F x) {
    const I bits = as_int(x);
    const I upper = and_int(shift_right(bits, 16), set1_int(0xffff));
    const I odd = and_int(upper, set1_int(1));
    const I rounded = and_int(shift_right(add_int(bits, add_int(odd, set1_int(0x7fff))), 16), set1_int(0xffff));
    // x - x is 0 where x is finite, else NaN: its bits keep what is not finite from being rounded to a number.
    return or_int(rounded, and_int(shift_right(as_int(sub(x, x)), 16), set1_int(0x7fff)));
}

// 1 / sqrt(mean(x^2) + eps), in every lane: two sums of 16 lanes each.
INLINE F inverse_root_of_row(const float* x, int width, float eps) {
    F squares[2] = {zero(), zero()};
    for (int i = 0; i < width; i += 32) {
        UNROLLED(half, 2) {
            const F value = load_first(x + i + half * 16, width - i - half * 16);
            squares[half] = fma(value, value, squares[half]);
        }
    }
    const float mean = sum_lanes(add(squares[0], squares[1])) / static_cast<float>(width);
    return set1(1.0f / square_root(mean + eps));
}

}  // namespace
}  // namespace octavo::OCTAVO_VARIANT
