// A decoder layer's two blocks, each as one call.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "adapters.hpp"
#include "attention_plan.hpp"
#include "product.hpp"

namespace octavo {

struct AttentionBlock {
    Norm norm, post_norm;
    Matrix qkv, output;
    const float* q_norm;  // [head_dim], or null
    const float* k_norm;
    float qk_eps;
    int heads, half;
    float scale, softcap;
    Cache cache;
};

struct FeedForward {
    Norm norm, post_norm;
    Matrix gate_up, down;
    Gate gate;
};

// What a step's layers share: where their tokens are written, how attention is cut, and the rotary factors.
struct LayerPlan {
    const AttentionPlan& attention;
    const std::int64_t* slots;  // [tokens]
    const float* cos;           // [tokens, half]
    const float* sin;
};

// What an adapter adds to a layer's products; null: nothing. gate_up has its columns where a gated product's panels
// have them before the gate.
struct LayerAdapter {
    const Adapter *qkv, *output, *gate_up, *down;
};

// The adapters of one layer, and which of them each token of a step has (below 0: none).
struct AdaptedLayer {
    std::vector<const LayerAdapter*> adapters;
    const std::int32_t* index;
};

// x [tokens, d] += the block of x. adapted: null where no token has an adapter; a token without one has the same bits
// either way. The caller holds the pool's mutex.
void run_attention_block(Runner& runner, const AttentionBlock& block, const LayerPlan& plan,
                         const AdaptedLayer* adapted, float* x);
void run_feed_forward(Runner& runner, const FeedForward& block, int tokens, const AdaptedLayer* adapted, float* x);

}  // namespace octavo
