#include "layers.hpp"

namespace octavo {
namespace {

float* floats(Runner& runner, Pool::Purpose purpose, int rows, int width) {
    const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
    return static_cast<float*>(runner.pool.workspace(purpose, count * sizeof(float)));
}

// x += matrix · rows, normed before it is added if there is a norm.
void add_product(Runner& runner, const Matrix& matrix, const float* rows, int count, Norm post_norm, float* x) {
    if (post_norm.weight == nullptr) return multiply(runner, matrix, {rows, count}, NO_GATE, x, x);
    float* product = floats(runner, Pool::PRODUCT, count, matrix.n);
    multiply(runner, matrix, {rows, count}, NO_GATE, nullptr, product);
    runner.kernels.add_norm(runner.pool.parallel(), {x, product, post_norm.weight, count, matrix.n, post_norm.eps});
}

}  // namespace

void run_attention_block(Runner& runner, const AttentionBlock& block, const LayerPlan& plan, float* x) {
    const int tokens = static_cast<int>(plan.attention.step.tokens), width = block.heads * block.cache.head_dim;
    if (tokens == 0) return;
    float* qkv = floats(runner, Pool::QKV, tokens, block.qkv.n);
    multiply(runner, block.qkv, {x, tokens, block.norm}, NO_GATE, nullptr, qkv);
    float* q = floats(runner, Pool::QUERIES, tokens, width);
    runner.kernels.rope_cache(runner.pool.parallel(),
                              {qkv, block.q_norm, block.k_norm, block.qk_eps, plan.cos, plan.sin, block.half,
                               plan.slots, q, tokens, block.heads, block.cache});
    // The product is done with: its memory holds what attention gives.
    run_attention(runner, plan.attention, block.cache, q, block.scale, block.softcap, qkv);
    add_product(runner, block.output, qkv, tokens, block.post_norm, x);
}

void run_feed_forward(Runner& runner, const FeedForward& block, int tokens, float* x) {
    if (tokens == 0) return;
    float* hidden = floats(runner, Pool::HIDDEN, tokens, block.gate_up.features());
    multiply(runner, block.gate_up, {x, tokens, block.norm}, block.gate, nullptr, hidden);
    add_product(runner, block.down, hidden, tokens, block.post_norm, x);
}

}  // namespace octavo
