// The router of a mixture of experts: the few most probable experts of each row.
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int CHUNK_ROWS = 8;

// exp(logit - largest) of up to 16 experts; lanes beyond are 0.
INLINE F powers(const float* logits, float largest, int count) {
    return keep_between(exponential(sub(load_first(logits, count), set1(largest))), 0, count, zero());
}

INLINE float power_of(const float* logits, float largest, int expert) {
    float lanes[16];
    store(lanes, exponential(sub(set1(logits[expert]), set1(largest))));
    return lanes[0];
}

// The largest logit that is not among the `count` chosen ones; of equal ones the first; of NaNs the first left.
INLINE int next_best(const float* logits, int experts, const int32_t* chosen, int count) {
    int best = -1;
    for (int e = 0; e < experts; ++e) {
        bool taken = false;
        for (int i = 0; i < count; ++i) taken |= chosen[i] == e;
        if (!taken && (best < 0 || logits[e] > logits[best])) best = e;
    }
    return best;
}

void route_row(const Route& job, int row) {
    const float* logits = job.logits + static_cast<int64_t>(row) * job.experts;
    int32_t* chosen = job.chosen + static_cast<int64_t>(row) * job.top_k;
    float* weights = job.weights + static_cast<int64_t>(row) * job.top_k;
    for (int i = 0; i < job.top_k; ++i) chosen[i] = next_best(logits, job.experts, chosen, i);
    const float largest = logits[chosen[0]];
    F sums = zero();
    for (int e = 0; e < job.experts; e += 16) sums = add(sums, powers(logits + e, largest, job.experts - e));
    const float all = sum_lanes(sums);
    float of_chosen = 0.0f;
    for (int i = 0; i < job.top_k; ++i) of_chosen += weights[i] = power_of(logits, largest, chosen[i]) / all;
    if (!job.normalize) return;
    for (int i = 0; i < job.top_k; ++i) weights[i] /= of_chosen;
}

}  // namespace

void route(const Parallel& parallel, const Route& job) {
    auto call = [](void* pointer, int index, int) {
        const Route& all = *static_cast<const Route*>(pointer);
        for (int r = index * CHUNK_ROWS; r < all.rows && r < (index + 1) * CHUNK_ROWS; ++r) route_row(all, r);
    };
    Route copy = job;
    parallel.run(parallel.pool, call, &copy, (job.rows + CHUNK_ROWS - 1) / CHUNK_ROWS);
}

}  // namespace octavo::OCTAVO_VARIANT
