// Weights to 4 bits at load, sixteen output features at a time: a lane is a feature's group of 32. Only operations
// that round alike everywhere, so that a packed file does not depend on the machine that wrote it.
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int LANES = 16;

// A group of each lane: 32 values, its ends, and what is 0, or NaN where a value is not finite.
struct Groups {
    F x[GROUP];
    F low, high, poison;
};

// What a group of each lane is stored as.
struct Codes {
    I quants[GROUP];
    I scale, minimum;  // float16 bits
};

INLINE Groups read_groups(const float* values, int k, int g) {
    alignas(64) float columns[GROUP][LANES];
    for (int lane = 0; lane < LANES; ++lane) {
        const float* from = values + static_cast<int64_t>(lane) * k + g * GROUP;
        for (int i = 0; i < GROUP; ++i) columns[i][lane] = from[i];
    }
    Groups groups;
    groups.low = groups.high = groups.x[0] = load(columns[0]);
    groups.poison = zero();
    for (int i = 0; i < GROUP; ++i) {
        groups.x[i] = load(columns[i]);
        groups.low = min(groups.low, groups.x[i]);
        groups.high = max(groups.high, groups.x[i]);
        groups.poison = add(groups.poison, sub(groups.x[i], groups.x[i]));
    }
    return groups;
}

// yes where a < b, otherwise no
INLINE F choose_less(F a, F b, F yes, F no) {
    const I mask = shift_right(as_int(sub(a, b)), 31);
    const I inverse = add_int(and_int(mask, set1_int(1)), set1_int(-1));
    return as_float(or_int(and_int(mask, as_int(yes)), and_int(inverse, as_int(no))));
}

INLINE F magnitude(F x) { return as_float(and_int(as_int(x), set1_int(0x7fffffff))); }

// float16 bits, to nearest even; what is not finite becomes NaN.
INLINE I half_bits(F x) {
    const I bits = as_int(magnitude(x));
    // Numbers of 11 significant bits: round what is cut off, then move the exponent.
    const I odd = and_int(shift_right(bits, 13), set1_int(1));
    const I rounded = shift_right(add_int(bits, add_int(odd, set1_int(0xfff - (112 << 23)))), 13);
    const F limit = set1(65520.0f), least = set1(6.103515625e-05f);
    const F normal = choose_less(magnitude(x), limit, as_float(rounded), as_float(set1_int(0x7c00)));
    // Below 2^-14 numbers are multiples of 2^-24.
    const I units = round_int(mul(min(magnitude(x), least), set1(16777216.0f)));
    const F result = choose_less(magnitude(x), least, as_float(units), normal);
    const I sign = and_int(shift_right(as_int(x), 16), set1_int(0x8000));
    const I poison = and_int(shift_right(as_int(sub(x, x)), 16), set1_int(0x7e00));
    return or_int(or_int(as_int(result), sign), poison);
}

INLINE F half_value(I bits) {
    alignas(64) uint16_t halves[LANES];
    store_uint16(halves, bits);
    return load_half(halves);
}

INLINE F positive_or(F value, F otherwise) { return choose_less(zero(), value, value, otherwise); }

INLINE I clamped(F value, float low, float high) { return round_int(min(max(value, set1(low)), set1(high))); }

// A scale and a minimum with the least squared error that was found, and N^2 / D of them.
struct Fit {
    F scale, minimum, gain;
};

// The least-squares scale and minimum of z = scale * q + minimum with q = clamp(round(z * factor - shift)). With
// N = 32 Szq - Sq Sz and D = 32 Sqq - Sq^2 the scale is N / D, and the squared error is that of the mean less
// N^2 / (32 D): the fit with the largest gain is the best.
INLINE Fit fit(const F (&z)[GROUP], F sum_z, F factor, F shift) {
    F sum_q = zero(), sum_qq = zero(), sum_zq = zero();
    for (int i = 0; i < GROUP; ++i) {
        const F q = to_float(clamped(sub(mul(z[i], factor), shift), 0.0f, 15.0f));
        sum_q = add(sum_q, q);
        sum_qq = add(sum_qq, mul(q, q));
        sum_zq = add(sum_zq, mul(z[i], q));
    }
    const F count = set1(static_cast<float>(GROUP));
    const F n = sub(mul(count, sum_zq), mul(sum_q, sum_z));
    // All quants equal: no scale fits better than another.
    const F d = positive_or(sub(mul(count, sum_qq), mul(sum_q, sum_q)), set1(__builtin_huge_valf()));
    Fit result;
    result.scale = div(n, d);
    result.minimum = div(sub(sum_z, mul(result.scale, sum_q)), count);
    result.gain = mul(n, result.scale);
    return result;
}

INLINE void keep_better(Fit& best, const Fit& other) {
    const F gain = best.gain;
    best.gain = choose_less(gain, other.gain, other.gain, best.gain);
    best.scale = choose_less(gain, other.gain, other.scale, best.scale);
    best.minimum = choose_less(gain, other.gain, other.minimum, best.minimum);
}

// Where the search starts: the range is `levels` steps, of which those beyond 15 are cut off at both ends alike. Whole
// numbers find weights that were of few levels before; more than 15 shrink the step at the outliers' cost.
constexpr float LEVELS[] = {15.0f, 14.0f,  13.0f,  12.0f, 11.0f, 10.0f, 9.0f,  8.0f, 14.25f,
                            14.5f, 14.75f, 15.25f, 15.5f, 16.0f, 16.5f, 17.0f, 18.0f};
constexpr int REFINEMENTS = 2;

// Scale and minimum by a search (candidate steps, then alternately quants and least squares; the idea of k-means),
// instead of from the ends: 10 to 14 % less error on random weights, none on weights that were of 4 bits before.
INLINE Codes code_int4(const Groups& groups) {
    F z[GROUP], sum_z = zero();
    for (int i = 0; i < GROUP; ++i) {
        z[i] = sub(groups.x[i], groups.low);
        sum_z = add(sum_z, z[i]);
    }
    const F range = positive_or(sub(groups.high, groups.low), set1(__builtin_huge_valf()));
    Fit best{zero(), div(sum_z, set1(static_cast<float>(GROUP))), zero()};
    for (const float levels : LEVELS) {
        const float cut = levels > 15.5f ? (levels - 15.0f) / 2 : 0.0f;
        keep_better(best, fit(z, sum_z, div(set1(levels), range), set1(cut)));
    }
    for (int round = 0; round < REFINEMENTS; ++round) {
        const F factor = div(set1(1.0f), positive_or(best.scale, set1(__builtin_huge_valf())));
        keep_better(best, fit(z, sum_z, factor, mul(best.minimum, factor)));
    }
    Codes codes;
    codes.scale = half_bits(add(best.scale, groups.poison));
    codes.minimum = half_bits(add(add(groups.low, best.minimum), groups.poison));
    const F scale = positive_or(half_value(codes.scale), set1(__builtin_huge_valf()));
    const F minimum = half_value(codes.minimum);
    for (int i = 0; i < GROUP; ++i) codes.quants[i] = clamped(div(sub(groups.x[i], minimum), scale), 0.0f, 15.0f);
    return codes;
}

// Nibbles of U4, and 16 scales and minima.
INLINE void write_int4(const Codes& codes, int half, uint8_t* record) {
    for (int i = 0; i < GROUP / 2; ++i) {
        alignas(64) int32_t both[LANES];
        store_int(both, or_int(codes.quants[i], shift_left(codes.quants[i + GROUP / 2], 4)));
        for (int lane = 0; lane < LANES; ++lane)
            record[nibble_place(half * LANES + lane) * (GROUP / 2) + i] = static_cast<uint8_t>(both[lane]);
    }
    uint16_t* factors = reinterpret_cast<uint16_t*>(record + NIBBLE_BYTES) + half * LANES;
    store_uint16(factors, codes.scale);
    store_uint16(factors + PANEL, codes.minimum);
}

}  // namespace

void quantize_weights(const float* values, int k, uint8_t* records) {
    for (int g = 0; g < k / GROUP; ++g) {
        uint8_t* record = records + static_cast<int64_t>(g) * (NIBBLE_BYTES + PANEL * 4);
        for (int half = 0; half < 2; ++half)
            write_int4(code_int4(read_groups(values + static_cast<int64_t>(half) * LANES * k, k, g)), half, record);
    }
}

}  // namespace octavo::OCTAVO_VARIANT
