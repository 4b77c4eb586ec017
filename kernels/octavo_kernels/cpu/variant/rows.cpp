// What is done to each row on its own: conversion and quantisation of inputs, RMS norm, the gated activation.
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int CHUNK_ROWS = 8;
constexpr float HUGE = __builtin_huge_valf();

// Calls Job::row(r) for all rows, a few per item.
template <class Job>
void run_rows(const Parallel& parallel, const Job& job, int rows) {
    struct Item {
        const Job* job;
        int rows;
    } item{&job, rows};
    auto call = [](void* pointer, int index, int) {
        const Item& all = *static_cast<const Item*>(pointer);
        for (int r = index * CHUNK_ROWS; r < all.rows && r < (index + 1) * CHUNK_ROWS; ++r) all.job->row(r);
    };
    parallel.run(parallel.pool, call, &item, (rows + CHUNK_ROWS - 1) / CHUNK_ROWS);
}

struct ToBf16 {
    const float* x;
    uint16_t* out;
    int k;

    void row(int r) const {
        const int padded = (k + 1) / 2 * 2;
        const float* from = x + static_cast<int64_t>(r) * k;
        uint16_t* to = out + static_cast<int64_t>(r) * padded;
        int i = 0;
        for (; i + 16 <= k; i += 16) store_uint16(to + i, round_to_bf16(load(from + i)));
        if (i < padded) {
            uint16_t rest[16];
            store_uint16(rest, round_to_bf16(load_first(from + i, k - i)));
            memcpy(to + i, rest, static_cast<size_t>(padded - i) * 2);
        }
    }
};

struct Quantize {
    const float* x;
    int8_t* values;
    QuantGroup* groups;
    int k;

    void row(int r) const {
        for (int g = 0; g < k / GROUP; ++g) {
            const int64_t at = static_cast<int64_t>(r) * k + g * GROUP;
            const F low = load(x + at), high = load(x + at + 16);
            // Magnitudes compare as integers, and NaN as the largest: it ends up in the scale, and so in the result.
            const I magnitude = set1_int(0x7fffffff);
            const int32_t bits =
                max_lanes_int(max_int(and_int(as_int(low), magnitude), and_int(as_int(high), magnitude)));
            float largest;
            memcpy(&largest, &bits, 4);
            const float scale = largest / 127.0f, inverse = 127.0f / largest;
            // Nothing to quantise: not finite, or so small that the inverse is not.
            const bool empty = !(largest < HUGE) || !(inverse < HUGE);
            const F factor = set1(inverse);
            const I first = empty ? zero_int() : round_int(mul(low, factor));
            const I second = empty ? zero_int() : round_int(mul(high, factor));
            store_int8(values + at, first);
            store_int8(values + at + 16, second);
            const int32_t sum_low = sum_lanes_int(first), sum = sum_low + sum_lanes_int(second);
            groups[static_cast<int64_t>(r) * (k / GROUP) + g] = {scale, scale * static_cast<float>(sum), -128 * sum,
                                                                 -128 * sum_low};
        }
    }
};

struct Normalize {
    const RmsNorm& norm;

    void row(int r) const {
        const int width = norm.width;
        const int64_t at = static_cast<int64_t>(r) * width;
        float* out = norm.out + at;
        float* total = norm.total ? norm.total + at : out;
        F squares = zero();
        for (int i = 0; i < width; i += 16) {
            F value = load_first(norm.x + at + i, width - i);
            if (norm.residual) value = add(value, load_first(norm.residual + at + i, width - i));
            store_first(total + i, value, width - i);
            squares = fma(value, value, squares);
        }
        const F root = set1(square_root(sum_lanes(squares) / static_cast<float>(width) + norm.eps));
        for (int i = 0; i < width; i += 16) {
            const F value = div(load_first(total + i, width - i), root);
            store_first(out + i, mul(value, load_first(norm.weight + i, width - i)), width - i);
        }
    }
};

struct Activate {
    const float* gate_up;
    float* out;
    int width;

    void row(int r) const {
        const float* gate = gate_up + static_cast<int64_t>(r) * width * 2;
        for (int i = 0; i < width; i += 16) {
            const F value = mul(silu(load_first(gate + i, width - i)), load_first(gate + width + i, width - i));
            store_first(out + static_cast<int64_t>(r) * width + i, value, width - i);
        }
    }
};

}  // namespace

void to_bf16(const Parallel& parallel, const float* x, uint16_t* out, int rows, int k) {
    run_rows(parallel, ToBf16{x, out, k}, rows);
}

void quantize(const Parallel& parallel, const float* x, int8_t* values, QuantGroup* groups, int rows, int k) {
    run_rows(parallel, Quantize{x, values, groups, k}, rows);
}

void rms_norm(const Parallel& parallel, const RmsNorm& norm) { run_rows(parallel, Normalize{norm}, norm.rows); }

void silu_mul(const Parallel& parallel, const float* gate_up, float* out, int rows, int width) {
    run_rows(parallel, Activate{gate_up, out, width}, rows);
}

}  // namespace octavo::OCTAVO_VARIANT
