// Low-rank adapters (Hu et al., 2021), another one for each row: out += (x · downᵀ) · upᵀ, the scale being in the middle.
// Each sum runs in a fixed order over its row alone.
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int CHUNK_RANKS = 8, CHUNK_COLUMNS = 512;

// 32 weights of a row that is padded to whole thirty-twos, see LoraFactor.
INLINE void load_weights(const LoraFactor& factor, int64_t at, F& low, F& high) {
    if (factor.bf16) {
        const I both = load_int(static_cast<const uint16_t*>(factor.data) + at);
        low = as_float(shift_left(both, 16));
        high = as_float(and_int(both, set1_int(static_cast<int32_t>(0xffff0000u))));
    } else {
        low = load(static_cast<const float*>(factor.data) + at);
        high = load(static_cast<const float*>(factor.data) + at + 16);
    }
}

// ranks [row][rank] = scale * the products of rows of one adapter with some of its ranks
template <int ROWS>
void shrink_rows(const LoraJob& job, const LoraAdapter& adapter, int place, int begin, int end) {
    const int width = job.width, padded = (width + 31) / 32 * 32;
    const float* x[ROWS];
    UNROLLED(r, ROWS) x[r] = job.x + static_cast<int64_t>(job.rows[place + r]) * width;
    for (int rank = begin; rank < end; ++rank) {
        F low_sum[ROWS], high_sum[ROWS];
        UNROLLED(r, ROWS) low_sum[r] = high_sum[r] = zero();
        for (int i = 0; i < width; i += 32) {
            F low, high;
            load_weights(adapter.down, static_cast<int64_t>(rank) * padded + i, low, high);
            UNROLLED(r, ROWS) {
                low_sum[r] = mul_add(low, load_first(x[r] + i, width - i), low_sum[r]);
                high_sum[r] = mul_add(high, load_first(x[r] + i + 16, width - i - 16), high_sum[r]);
            }
        }
        UNROLLED(r, ROWS) {
            job.ranks[static_cast<int64_t>(place + r) * job.most_ranks + rank] =
                adapter.scale * sum_lanes(add(low_sum[r], high_sum[r]));
        }
    }
}

// Some columns of out, for rows of one adapter.
template <int ROWS>
void expand_rows(const LoraJob& job, const LoraAdapter& adapter, int place, int begin, int end) {
    const int padded = (job.columns + 31) / 32 * 32;
    float* out[ROWS];
    const float* ranks[ROWS];
    UNROLLED(r, ROWS) {
        out[r] = job.out + job.rows[place + r] * job.out_stride;
        ranks[r] = job.ranks + static_cast<int64_t>(place + r) * job.most_ranks;
    }
    for (int n = begin; n < end; n += 32) {
        const int left = job.columns - n;
        F low_sum[ROWS], high_sum[ROWS];
        UNROLLED(r, ROWS) low_sum[r] = high_sum[r] = zero();
        for (int rank = 0; rank < adapter.rank; ++rank) {
            F low, high;
            load_weights(adapter.up, static_cast<int64_t>(rank) * padded + n, low, high);
            UNROLLED(r, ROWS) {
                low_sum[r] = mul_add(low, set1(ranks[r][rank]), low_sum[r]);
                high_sum[r] = mul_add(high, set1(ranks[r][rank]), high_sum[r]);
            }
        }
        UNROLLED(r, ROWS) {
            store_first(out[r] + n, add(load_first(out[r] + n, left), low_sum[r]), left);
            store_first(out[r] + n + 16, add(load_first(out[r] + n + 16, left - 16), high_sum[r]), left - 16);
        }
    }
}

// One way or the other: [rows - 1]
using RowsFunction = void (*)(const LoraJob&, const LoraAdapter&, int place, int begin, int end);
constexpr RowsFunction SHRINK[] = {shrink_rows<1>, shrink_rows<2>, shrink_rows<3>, shrink_rows<4>};
constexpr RowsFunction EXPAND[] = {expand_rows<1>, expand_rows<2>, expand_rows<3>, expand_rows<4>};

struct Phase {
    const LoraJob* job;
    const RowsFunction* functions;
    bool shrink;
    int chunk, chunks;
};

void run_phase_item(void* pointer, int index, int) {
    const Phase& phase = *static_cast<const Phase*>(pointer);
    const LoraTile tile = phase.job->tiles[index / phase.chunks];
    const LoraAdapter& adapter = phase.job->adapters[tile.adapter];
    const int all = phase.shrink ? adapter.rank : phase.job->columns;
    const int begin = index % phase.chunks * phase.chunk, end = begin + phase.chunk < all ? begin + phase.chunk : all;
    if (begin < end) phase.functions[tile.count - 1](*phase.job, adapter, tile.begin, begin, end);
}

}  // namespace

void lora(const Parallel& parallel, const LoraJob& job) {
    static_assert(sizeof SHRINK / sizeof SHRINK[0] == LORA_ROWS && sizeof EXPAND / sizeof EXPAND[0] == LORA_ROWS);
    Phase shrink{&job, SHRINK, true, CHUNK_RANKS, (job.most_ranks + CHUNK_RANKS - 1) / CHUNK_RANKS};
    parallel.run(parallel.pool, run_phase_item, &shrink, job.num_tiles * shrink.chunks);
    Phase expand{&job, EXPAND, false, CHUNK_COLUMNS, (job.columns + CHUNK_COLUMNS - 1) / CHUNK_COLUMNS};
    parallel.run(parallel.pool, run_phase_item, &expand, job.num_tiles * expand.chunks);
}

}  // namespace octavo::OCTAVO_VARIANT
