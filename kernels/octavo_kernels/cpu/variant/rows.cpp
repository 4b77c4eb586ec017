// What is done to each row on its own: norms, conversion and quantisation of inputs, the gated activation.
#include "split.hpp"

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

// A row as it is.
struct Plain {
    const float* x;

    INLINE F take(const Plain& row, int i) { return load(row.x + i); }
    INLINE F take_first(const Plain& row, int i, int count) { return load_first(row.x + i, count); }
};

// A row under its norm.
struct Normed {
    const float* x;
    const float* weight;
    F inverse_root;

    INLINE F take(const Normed& row, int i) {
        return mul(mul(load(row.x + i), row.inverse_root), load(row.weight + i));
    }
    INLINE F take_first(const Normed& row, int i, int count) {
        return mul(mul(load_first(row.x + i, count), row.inverse_root), load_first(row.weight + i, count));
    }
};

// `count` values from `begin` on, written to `room` if they lie nowhere else.
INLINE const float* values_of(const Plain& row, int begin, int, float*) { return row.x + begin; }
INLINE const float* values_of(const Normed& row, int begin, int count, float* room) {
    for (int i = 0; i < count; i += 16) store(room + i, Normed::take(row, begin + i));
    return room;
}

template <class Row>
INLINE void write_floats(const Row& row, float* out, int k) {
    for (int i = 0; i < k; i += 16) store_first(out + i, Row::take_first(row, i, k - i), k - i);
}

template <class Row>
INLINE void write_bf16(const Row& row, uint16_t* out, int k) {
    const int padded = (k + 1) / 2 * 2;
    int i = 0;
    for (; i + 16 <= k; i += 16) store_uint16(out + i, round_to_bf16(Row::take(row, i)));
    if (i < padded) {
        uint16_t rest[16];
        store_uint16(rest, round_to_bf16(Row::take_first(row, i, k - i)));
        memcpy(out + i, rest, static_cast<size_t>(padded - i) * 2);
    }
}

// What the root mean square of a chunk becomes: few values then are more than 127 and have a high part, and rounding
// errs by so much of the whole, however heavy its tails are. Weights of 8 bits are worth more than those of 4.
INLINE float split_rms(WeightKind kind) { return kind == U8 ? 127.0f / 3.0f : 127.0f / 4.0f; }
constexpr float MOST_SPLIT = 127.0f * 128.0f + 63.0f;

// The scale of some values: one that most of them fit in 8 bits with, and all in 15.
INLINE float split_scale(const float* values, int count, WeightKind kind) {
    const I magnitude = set1_int(0x7fffffff);
    F squares[2] = {zero(), zero()};
    I most = zero_int();
    for (int i = 0; i < count; i += GROUP) {
        UNROLLED(half, 2) {
            const I bits = and_int(as_int(load(values + i + half * 16)), magnitude);
            squares[half] = fma(as_float(bits), as_float(bits), squares[half]);
            most = max_int(most, bits);
        }
    }
    const float mean = sum_lanes(add(squares[0], squares[1])) / static_cast<float>(count);
    const int32_t bits = max_lanes_int(most);
    float largest;
    memcpy(&largest, &bits, 4);
    const float usual = square_root(mean) / split_rms(kind), least = largest / MOST_SPLIT;
    // Not finite: what is not finite in the row, or a square too large for a float.
    return usual > least && usual < HUGE ? usual : least;
}

// Lanes of which the value is not in -127..127: all bits, otherwise none.
INLINE I beyond_8_bits(I value) {
    const I size = max_int(value, sub_int(zero_int(), value));
    return shift_right(sub_int(set1_int(127), size), 31);
}

// Bit i: one of x[4 i] to x[4 i + 3] is not 0.
INLINE uint64_t quads_of(const int8_t* x) {
    uint64_t bits = 0;
    for (int i = 0; i < 4; ++i) {
        uint32_t four;
        memcpy(&four, x + i * 4, 4);
        bits |= (four ? uint64_t{1} : uint64_t{0}) << i;
    }
    return bits;
}

// Quantised values of a chunk, 16 at a time, to low and high. Meanwhile what lies at `next` is fetched, as many values:
// another core has just written much of it.
INLINE void write_chunk(const float* values, int count, float factor, const float* next, int8_t* low, int8_t* high,
                        SplitChunk& chunk) {
    I low_sum = zero_int(), high_sum = zero_int();
    for (int i = 0; i < count; i += 16) {
        __builtin_prefetch(next + i);
        I low_part = round_int(mul(load(values + i), set1(factor))), high_part = zero_int();
        const I beyond = beyond_8_bits(low_part);
        if (any(beyond)) {
            high_part = and_int(shift_right(add_int(low_part, set1_int(64)), 7), beyond);
            low_part = sub_int(low_part, shift_left(high_part, 7));
            high_sum = add_int(high_sum, high_part);
            chunk.any_high = 1;
        }
        low_sum = add_int(low_sum, low_part);
        store_int8(low + i, low_part);
        store_int8(high + i, high_part);
        if (any(beyond)) chunk.high[i / 256] |= quads_of(high + i) << (i % 256 / 4);
    }
    chunk.low_start = -128 * sum_lanes_int(low_sum);
    if (chunk.any_high) chunk.high_start = -128 * sum_lanes_int(high_sum);
}

template <class Row>
INLINE void write_split(const Row& row, WeightKind kind, const SplitRows& out, int64_t r, int k) {
    const int groups = k / GROUP, chunks = count_chunks(groups);
    alignas(64) float room[MOST_CHUNK_GROUPS * GROUP];
    for (int c = 0; c < chunks; ++c) {
        const ChunkGroups here = groups_of(c, groups);
        const int begin = here.first * GROUP, count = here.count * GROUP;
        const float* values = values_of(row, begin, count, room);
        const float scale = split_scale(values, count, kind), inverse = 1.0f / scale;
        SplitChunk& chunk = out.chunks[r * chunks + c];
        chunk = {scale, 0, 0, 0, {}};
        int8_t *low = out.low + r * out.stride + begin, *high = out.high + r * out.stride + begin;
        if (scale < HUGE && inverse < HUGE) {
            write_chunk(values, count, inverse, row.x + begin + count, low, high, chunk);
        } else {  // nothing to quantise: not finite, or so small that the inverse is not
            memset(low, 0, static_cast<size_t>(count));
            memset(high, 0, static_cast<size_t>(count));
        }
    }
}

template <class Row>
void write_input(const Prepare& job, const Row& row, int64_t r) {
    const int k = job.width;
    if (job.kind == F32) {
        write_floats(row, static_cast<float*>(job.input) + r * k, k);
    } else if (job.kind == BF16) {
        write_bf16(row, static_cast<uint16_t*>(job.input) + r * ((k + 1) / 2 * 2), k);
    } else {
        write_split(row, job.kind, job.split, r, k);
    }
}

struct Preparation {
    const Prepare& job;

    void row(int r) const {
        const float* x = job.x + static_cast<int64_t>(job.gather ? job.gather[r] : r) * job.width;
        if (job.norm) {
            write_input(job, Normed{x, job.norm, inverse_root_of_row(x, job.width, job.eps)}, r);
        } else {
            write_input(job, Plain{x}, r);
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
        for (int i = 0; i < width; i += 16) {
            F value = load_first(norm.x + at + i, width - i);
            if (norm.residual) value = add(value, load_first(norm.residual + at + i, width - i));
            store_first(total + i, value, width - i);
        }
        const F inverse_root = inverse_root_of_row(total, width, norm.eps);
        for (int i = 0; i < width; i += 16) {
            const F value = mul(load_first(total + i, width - i), inverse_root);
            store_first(out + i, mul(value, load_first(norm.weight + i, width - i)), width - i);
        }
    }
};

struct NormAddition {
    const AddNorm& job;

    void row(int r) const {
        const int width = job.width;
        const int64_t at = static_cast<int64_t>(r) * width;
        const Normed normed{job.y + at, job.weight, inverse_root_of_row(job.y + at, width, job.eps)};
        for (int i = 0; i < width; i += 16) {
            const F sum = add(load_first(job.x + at + i, width - i), Normed::take_first(normed, i, width - i));
            store_first(job.x + at + i, sum, width - i);
        }
    }
};

// A piece of what is capped.
struct Cap {
    float* x;
    int64_t count;
    float cap;
    static constexpr int PIECE = 1024;

    void row(int r) const {
        const int64_t begin = static_cast<int64_t>(r) * PIECE;
        for (int64_t i = begin; i < begin + PIECE && i < count; i += 16) {
            const int left = count - i < 16 ? static_cast<int>(count - i) : 16;
            const F value = div(load_first(x + i, left), set1(cap));
            store_first(x + i, mul(hyperbolic_tangent(value), set1(cap)), left);
        }
    }
};

struct Activate {
    const Activation& job;

    void row(int r) const {
        const int features = job.features, stride = divide_up(features, PANEL / 2) * PANEL;
        const float* row = job.panels + static_cast<int64_t>(r) * stride;
        float* out = job.out + static_cast<int64_t>(r) * features;
        for (int i = 0; i < features; i += 16) {
            const int count = features - i;
            const F gate = add_bias(load(row + i * 2), job.bias, i, count);
            const F up = add_bias(load(row + i * 2 + 16), job.bias, features + i, count);
            store_first(out + i, mul(job.gate == GATE_SILU ? silu(gate) : gelu_tanh(gate), up), count);
        }
    }
};

}  // namespace

void prepare(const Parallel& parallel, const Prepare& job) { run_rows(parallel, Preparation{job}, job.rows); }

void rms_norm(const Parallel& parallel, const RmsNorm& norm) { run_rows(parallel, Normalize{norm}, norm.rows); }

void add_norm(const Parallel& parallel, const AddNorm& job) { run_rows(parallel, NormAddition{job}, job.rows); }

void softcap(const Parallel& parallel, float* x, int64_t count, float cap) {
    run_rows(parallel, Cap{x, count, cap}, static_cast<int>((count + Cap::PIECE - 1) / Cap::PIECE));
}

void activate(const Parallel& parallel, const Activation& job) { run_rows(parallel, Activate{job}, job.rows); }

}  // namespace octavo::OCTAVO_VARIANT
