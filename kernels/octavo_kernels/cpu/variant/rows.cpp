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

INLINE F root_of(F squares, int width, float eps) {
    return set1(square_root(sum_lanes(squares) / static_cast<float>(width) + eps));
}

INLINE F root_of_row(const float* x, int width, float eps) {
    F squares = zero();
    for (int i = 0; i < width; i += 16) {
        const F value = load_first(x + i, width - i);
        squares = fma(value, value, squares);
    }
    return root_of(squares, width, eps);
}

// A row under its norm.
struct Normed {
    const float* x;
    const float* weight;
    F root;

    INLINE F take(const Normed& row, int i) { return mul(div(load(row.x + i), row.root), load(row.weight + i)); }
    INLINE F take_first(const Normed& row, int i, int count) {
        return mul(div(load_first(row.x + i, count), row.root), load_first(row.weight + i, count));
    }
};

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

// Of a chunk the mean magnitude is SPLIT_MEAN: then few are more than 127 and have a high part.
constexpr float SPLIT_MEAN = 127.0f / 4.0f;
constexpr float MOST_SPLIT = 127.0f * 128.0f + 63.0f;

// The scale of some values: one that most of them fit in 8 bits with, and all in 15.
INLINE float split_scale(const float* values, int count) {
    const I magnitude = set1_int(0x7fffffff);
    F total = zero();
    I most = zero_int();
    for (int i = 0; i < count; i += 16) {
        const I bits = and_int(as_int(load(values + i)), magnitude);
        total = add(total, as_float(bits));
        most = max_int(most, bits);
    }
    const int32_t bits = max_lanes_int(most);
    float largest;
    memcpy(&largest, &bits, 4);
    const float usual = sum_lanes(total) / (static_cast<float>(count) * SPLIT_MEAN), least = largest / MOST_SPLIT;
    // Not finite: what is not finite in the row, or a sum too large for a float.
    return usual > least && usual < HUGE ? usual : least;
}

// Sixteen quantised activations: low + 128 * high.
struct Split {
    I low, high;

    INLINE Split of(I value) {
        const I size = max_int(value, sub_int(zero_int(), value));
        const I large = shift_right(sub_int(set1_int(127), size), 31);
        const I high = and_int(shift_right(add_int(value, set1_int(64)), 7), large);
        return {sub_int(value, shift_left(high, 7)), high};
    }
};

// Writes 32 quantised activations; whether one of them has a high part.
INLINE bool write_split_group(const Split& first, const Split& second, int8_t* low, int8_t* high, SplitGroup& group) {
    store_int8(low, first.low);
    store_int8(low + 16, second.low);
    store_int8(high, first.high);
    store_int8(high + 16, second.high);
    const int32_t sum = sum_lanes_int(add_int(first.low, second.low));
    group = {-8 * sum, sum * 65536, 0, 0};
    if (!any(or_int(first.high, second.high))) return false;
    const int32_t high_sum = sum_lanes_int(add_int(first.high, second.high));
    group.high_start = -8 * high_sum;
    group.high_upper = high_sum * 65536;
    return true;
}

template <class Row>
INLINE void write_split(const Row& row, const SplitRows& out, int64_t r, int k) {
    const int groups = k / GROUP, chunks = count_chunks(groups);
    alignas(64) float values[MOST_CHUNK_GROUPS * GROUP];
    for (int c = 0; c < chunks; ++c) {
        const ChunkGroups here = groups_of(c, groups);
        const int begin = here.first * GROUP, count = here.count * GROUP;
        for (int i = 0; i < count; i += 16) store(values + i, Row::take(row, begin + i));
        const float scale = split_scale(values, count), inverse = 1.0f / scale;
        // Nothing to quantise: not finite, or so small that the inverse is not.
        const bool empty = !(scale < HUGE) || !(inverse < HUGE);
        const F factor = set1(empty ? 0.0f : inverse);
        SplitChunk& chunk = out.chunks[r * chunks + c];
        chunk = {scale, 0};
        for (int g = 0; g < here.count; ++g) {
            const float* from = values + g * GROUP;
            Split first{zero_int(), zero_int()}, second = first;
            if (!empty) {
                first = Split::of(round_int(mul(load(from), factor)));
                second = Split::of(round_int(mul(load(from + 16), factor)));
            }
            const int64_t at = r * out.stride + begin + g * GROUP;
            const bool high =
                write_split_group(first, second, out.low + at, out.high + at, out.groups[r * groups + here.first + g]);
            chunk.high |= static_cast<uint32_t>(high) << g;
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
        write_split(row, job.split, r, k);
    }
}

struct Preparation {
    const Prepare& job;

    void row(int r) const {
        const float* x = job.x + static_cast<int64_t>(job.gather ? job.gather[r] : r) * job.width;
        if (job.norm) {
            write_input(job, Normed{x, job.norm, root_of_row(x, job.width, job.eps)}, r);
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
        F squares = zero();
        for (int i = 0; i < width; i += 16) {
            F value = load_first(norm.x + at + i, width - i);
            if (norm.residual) value = add(value, load_first(norm.residual + at + i, width - i));
            store_first(total + i, value, width - i);
            squares = fma(value, value, squares);
        }
        const F root = root_of(squares, width, norm.eps);
        for (int i = 0; i < width; i += 16) {
            const F value = div(load_first(total + i, width - i), root);
            store_first(out + i, mul(value, load_first(norm.weight + i, width - i)), width - i);
        }
    }
};

struct NormAddition {
    const AddNorm& job;

    void row(int r) const {
        const int width = job.width;
        const int64_t at = static_cast<int64_t>(r) * width;
        const Normed normed{job.y + at, job.weight, root_of_row(job.y + at, width, job.eps)};
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

void prepare(const Parallel& parallel, const Prepare& job) { run_rows(parallel, Preparation{job}, job.rows); }

void rms_norm(const Parallel& parallel, const RmsNorm& norm) { run_rows(parallel, Normalize{norm}, norm.rows); }

void add_norm(const Parallel& parallel, const AddNorm& job) { run_rows(parallel, NormAddition{job}, job.rows); }

void softcap(const Parallel& parallel, float* x, int64_t count, float cap) {
    run_rows(parallel, Cap{x, count, cap}, static_cast<int>((count + Cap::PIECE - 1) / Cap::PIECE));
}

void silu_mul(const Parallel& parallel, const float* gate_up, float* out, int rows, int width) {
    run_rows(parallel, Activate{gate_up, out, width}, rows);
}

}  // namespace octavo::OCTAVO_VARIANT
