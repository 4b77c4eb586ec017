#include "layers.hpp"

namespace octavo {
namespace {

float* floats(Runner& runner, Pool::Purpose purpose, int rows, int width) {
    const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
    return static_cast<float*>(runner.pool.workspace(purpose, count * sizeof(float)));
}

// What the adapters of a layer add to one of its products.
class Addition {
public:
    Addition(Runner& runner, const AdaptedLayer* adapted, const Adapter* LayerAdapter::* product) : runner_(runner) {
        if (adapted == nullptr) return;
        index_ = adapted->index;
        for (const LayerAdapter* adapter : adapted->adapters) {
            parts_.push_back(adapter->*product);
            if (parts_.back() != nullptr) width_ = parts_.back()->width();
        }
    }

    bool any() const { return width_ > 0; }

    // out [rows, columns] += what they make of the rows, normed if there is a norm.
    void add(const InputRows& rows, float* out, int columns) const {
        if (!any()) return;
        const float* x = rows.x;
        if (rows.norm.weight != nullptr) {
            float* normed = floats(runner_, Pool::NORMED, rows.count, width_);
            runner_.kernels.rms_norm(runner_.pool.parallel(), {x, nullptr, rows.norm.weight, nullptr, normed,
                                                               rows.count, width_, rows.norm.eps});
            x = normed;
        }
        run_adapters(runner_.kernels, runner_.pool, parts_, {x, index_, rows.count, out, columns});
    }

private:
    Runner& runner_;
    std::vector<const Adapter*> parts_;
    const std::int32_t* index_ = nullptr;
    int width_ = 0;
};

// x += matrix · rows, with what adapters add, normed before it is added if there is a norm.
void add_product(Runner& runner, const Matrix& matrix, const InputRows& rows, const Addition& addition, Norm post_norm,
                 float* x) {
    if (post_norm.weight == nullptr) {
        multiply(runner, matrix, rows, NO_GATE, x, x);
        return addition.add(rows, x, matrix.n);
    }
    float* product = floats(runner, Pool::PRODUCT, rows.count, matrix.n);
    multiply(runner, matrix, rows, NO_GATE, nullptr, product);
    addition.add(rows, product, matrix.n);
    runner.kernels.add_norm(runner.pool.parallel(),
                            {x, product, post_norm.weight, rows.count, matrix.n, post_norm.eps});
}

// A gated product whose gate waits for what adapters add.
void multiply_adapted(Runner& runner, const FeedForward& block, const InputRows& rows, const Addition& addition,
                      float* hidden) {
    Matrix panels = block.gate_up;
    panels.gate_up = false;
    panels.n = panel_columns(block.gate_up.features());
    panels.bias = nullptr;
    float* product = floats(runner, Pool::PRODUCT, rows.count, panels.n);
    multiply(runner, panels, rows, NO_GATE, nullptr, product);
    addition.add(rows, product, panels.n);
    runner.kernels.activate(runner.pool.parallel(),
                            {product, block.gate_up.bias, block.gate, hidden, rows.count, block.gate_up.features()});
}

}  // namespace

void run_attention_block(Runner& runner, const AttentionBlock& block, const LayerPlan& plan,
                         const AdaptedLayer* adapted, float* x) {
    const int tokens = static_cast<int>(plan.attention.step.tokens), width = block.heads * block.cache.head_dim;
    if (tokens == 0) return;
    float* qkv = floats(runner, Pool::QKV, tokens, block.qkv.n);
    const InputRows rows{x, tokens, block.norm};
    multiply(runner, block.qkv, rows, NO_GATE, nullptr, qkv);
    Addition(runner, adapted, &LayerAdapter::qkv).add(rows, qkv, block.qkv.n);
    float* q = floats(runner, Pool::QUERIES, tokens, width);
    runner.kernels.rope_cache(runner.pool.parallel(),
                              {qkv, block.q_norm, block.k_norm, block.qk_eps, plan.cos, plan.sin, block.half,
                               plan.slots, q, tokens, block.heads, block.cache});
    // The product is done with: its memory holds what attention gives.
    run_attention(runner, plan.attention, block.cache, q, block.scale, block.softcap, qkv);
    add_product(runner, block.output, {qkv, tokens}, {runner, adapted, &LayerAdapter::output}, block.post_norm, x);
}

void run_feed_forward(Runner& runner, const FeedForward& block, int tokens, const AdaptedLayer* adapted, float* x) {
    if (tokens == 0) return;
    float* hidden = floats(runner, Pool::HIDDEN, tokens, block.gate_up.features());
    const InputRows rows{x, tokens, block.norm};
    const Addition addition(runner, adapted, &LayerAdapter::gate_up);
    if (addition.any()) {
        multiply_adapted(runner, block, rows, addition, hidden);
    } else {
        multiply(runner, block.gate_up, rows, block.gate, nullptr, hidden);
    }
    add_product(runner, block.down, {hidden, tokens}, {runner, adapted, &LayerAdapter::down}, block.post_norm, x);
}

}  // namespace octavo
