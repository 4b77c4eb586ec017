// The feed-forward block of a mixture of experts: each row through the few experts that its router chose.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.hpp"
#include "pool.hpp"

namespace octavo {

// A packed matrix without a bias.
struct ExpertMatrix {
    WeightKind kind;
    const std::uint8_t* data;
};

// Experts of the same shapes and kinds: gate and up [2 * features, width] joined, then down [width, features].
struct Experts {
    std::vector<ExpertMatrix> gate_up, down;
    int width, features;
    Gate gate;
};

// The rows of a step: x [rows, width], and for each top_k experts with their weights, as the router chose them.
struct RoutedRows {
    const float* x;
    const std::int32_t* experts;  // [rows, top_k]; below 0: none
    const float* weights;         // [rows, top_k]
    int rows, top_k;
    const float* residual;  // [rows, width], or null
    float* out;             // [rows, width], may be the residual or x
};

// out = residual + weights[0] * expert_0(x) + weights[1] * expert_1(x) + …, added in this order: a row's result depends
// on nothing but the row and its experts. The caller holds the pool's mutex.
void run_experts(const Kernels& kernels, Pool& pool, const Experts& experts, const RoutedRows& routed);

}  // namespace octavo
