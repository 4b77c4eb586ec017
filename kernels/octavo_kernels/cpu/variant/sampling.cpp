// The passes over a row of logits that sampling makes: what is largest, weights, candidates.
//
// A weight decides tokens, so its operations are fixed: float32, each product and each sum rounded on its own, and the
// result an integer, whose sums do not depend on their order.
#include "sampling.hpp"

#include "math.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr float NOTHING = -__builtin_huge_valf();
constexpr float WEIGHTLESS = -30.0f;  // exp of it is far below half of 1 / WEIGHT_ONE

INLINE F load_logits(const float* from, int count) {
    if (count >= 16) return load(from);
    return keep_between(load_first(from, count), 0, count, set1(NOTHING));
}

// exp(x) for x <= 0: 2^n by the exponent bits, the rest by Cephes' polynomial (Moshier) on +-ln(2) / 2.
INLINE F weight_of(F x) {
    // Second, so that what is not a number (0 * infinity) weighs nothing.
    const F clamped = max(x, set1(WEIGHTLESS));
    const I n = round_int(mul(clamped, set1(1.44269504f)));
    const F whole = to_float(n);
    F r = sub(clamped, mul(whole, set1(0.693359375f)));
    r = add(r, mul(whole, set1(2.12194440e-4f)));
    F p = set1(1.9875691500e-4f);
    p = add(mul(p, r), set1(1.3981999507e-3f));
    p = add(mul(p, r), set1(8.3334519073e-3f));
    p = add(mul(p, r), set1(4.1665795894e-2f));
    p = add(mul(p, r), set1(1.6666665459e-1f));
    p = add(mul(p, r), set1(5.0000001201e-1f));
    p = add(add(mul(mul(r, r), p), r), set1(1.0f));
    return mul(p, as_float(shift_left(add_int(n, set1_int(127)), 23)));
}

INLINE I integer_weight(F logits, F largest, F inverse_temperature, F least) {
    const F weight = weight_of(mul(sub(logits, largest), inverse_temperature));
    return truncate_int(mul(zero_below(weight, weight, least), set1(static_cast<float>(WEIGHT_ONE))));
}

}  // namespace

Scan scan_logits(const float* logits, int count, float* maxima) {
    constexpr int CHAINS = 4;
    I magnitudes[CHAINS];
    UNROLLED(c, CHAINS) magnitudes[c] = zero_int();
    F overall = set1(NOTHING);
    for (int begin = 0; begin < count; begin += PARTITION_LOGITS, maxima += 16) {
        F most[CHAINS];
        UNROLLED(c, CHAINS) most[c] = set1(NOTHING);
        const int left = count - begin < PARTITION_LOGITS ? count - begin : PARTITION_LOGITS;
        int i = 0;
        for (; i + 16 * CHAINS <= left; i += 16 * CHAINS) {
            UNROLLED(c, CHAINS) {
                const F value = load(logits + begin + i + 16 * c);
                most[c] = max(value, most[c]);
                magnitudes[c] = max_int(magnitudes[c], and_int(as_int(value), set1_int(0x7fffffff)));
            }
        }
        for (; i < left; i += 16) {
            most[0] = max(load_logits(logits + begin + i, left - i), most[0]);
            const F value = load_first(logits + begin + i, left - i);
            magnitudes[0] = max_int(magnitudes[0], and_int(as_int(value), set1_int(0x7fffffff)));
        }
        const F largest = max(max(most[0], most[1]), max(most[2], most[3]));
        store(maxima, largest);
        overall = max(largest, overall);
    }
    const I magnitude = max_int(max_int(magnitudes[0], magnitudes[1]), max_int(magnitudes[2], magnitudes[3]));
    return {max_lanes(overall), max_lanes_int(magnitude)};
}

int64_t weigh_logits(const float* logits, int count, float largest, float inverse_temperature, float least,
                     int32_t* weights, int64_t* sums) {
    const F most = set1(largest), inverse = set1(inverse_temperature), smallest = set1(least);
    int64_t total = 0;
    for (int begin = 0; begin < count; begin += PARTITION_LOGITS) {
        const int end = count - begin < PARTITION_LOGITS ? count : begin + PARTITION_LOGITS;
        // A lane's 16 weights of 2^30 do not fit in 32 bits: upper and lower halves are summed apart.
        I upper = zero_int(), lower = zero_int();
        for (int i = begin; i < end; i += 16) {
            const I weight = integer_weight(load_logits(logits + i, end - i), most, inverse, smallest);
            if (weights) store_first(reinterpret_cast<float*>(weights) + i, as_float(weight), end - i);
            upper = add_int(upper, shift_right(weight, 15));
            lower = add_int(lower, and_int(weight, set1_int(0x7fff)));
        }
        const int64_t sum = (static_cast<int64_t>(sum_lanes_int(upper)) << 15) + sum_lanes_int(lower);
        if (sums) sums[begin / PARTITION_LOGITS] = sum;
        total += sum;
    }
    return total;
}

int gather_logits(const float* logits, int count, float limit, float* values, int32_t* ids) {
    static constexpr int32_t LANES[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const F least = set1(limit);
    int found = 0;
    for (int i = 0; i < count; i += 16) {
        const I lanes = add_int(load_int(LANES), set1_int(i));
        const F value = load_logits(logits + i, count - i);
        int kept = keep_from(value, least, lanes, values + found, ids + found);
        // Lanes beyond the end are -inf, which only a limit of -inf keeps.
        if (found + kept > 0 && ids[found + kept - 1] >= count) kept = count - i;
        found += kept;
    }
    return found;
}

double sum_exponentials(const float* logits, int count, float largest) {
    const F most = set1(largest);
    double total = 0.0;
    for (int begin = 0; begin < count; begin += PARTITION_LOGITS) {
        const int end = count - begin < PARTITION_LOGITS ? count : begin + PARTITION_LOGITS;
        F sum = zero();
        for (int i = begin; i < end; i += 16) sum = add(sum, exponential(sub(load_logits(logits + i, end - i), most)));
        total += static_cast<double>(sum_lanes(sum));
    }
    return total;
}

}  // namespace octavo::OCTAVO_VARIANT
