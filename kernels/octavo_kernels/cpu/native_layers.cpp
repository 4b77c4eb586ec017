// A model's layers, a step's shared facts, the embedding and the logits, as Python sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "layers.hpp"
#include "unpack.hpp"
#include "weight.hpp"

namespace octavo {
namespace {

using Vector = std::optional<In1>;

// Rotary factors of all positions, [positions, half].
struct Rope {
    In2 cos, sin;

    Rope(In2 cos, In2 sin) : cos(cos), sin(sin) { require_shape(sin, "sin", {cos.shape(0), cos.shape(1)}); }
    std::size_t half() const { return cos.shape(1); }
};

// The arrays of a step. What layers ask of them is worked out once for all that ask the same.
class Step {
public:
    Step(Int1 positions, Int1 row_offsets, Int1 context_lengths, std::vector<Int2> block_tables,
         std::vector<Slots> slots)
        : positions_(positions),
          row_offsets_(row_offsets),
          context_lengths_(context_lengths),
          block_tables_(std::move(block_tables)),
          slots_(std::move(slots)) {
        require_shape(row_offsets, "row_offsets", {context_lengths.shape(0) + 1});
        require(block_tables_.size() == slots_.size(), "A step has block tables and slots for each group.");
        for (const Int2& tables : block_tables_)
            require_shape(tables, "block_tables", {context_lengths.shape(0), tables.shape(1)});
        for (const Slots& slots : slots_) {
            require_shape(slots, "slots", {tokens()});
            const std::int64_t* end = slots.data() + tokens();
            highest_slots_.push_back(tokens() ? *std::max_element(slots.data(), end) : -1);
        }
    }

    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    std::size_t tokens() const { return positions_.shape(0); }
    std::size_t groups() const { return slots_.size(); }
    const std::int64_t* slots(std::size_t group) const { return slots_[group].data(); }
    std::int64_t highest_slot(std::size_t group) const { return highest_slots_[group]; }

    const AttentionPlan& attention(std::size_t group, int window, int heads_per_kv_head) {
        for (const auto& [key, plan] : plans_) {
            if (key == group && plan->window == window && plan->group == heads_per_kv_head) return *plan;
        }
        const Int2& tables = block_tables_[group];
        const StepRows rows{positions_.data(), row_offsets_.data(),       context_lengths_.data(), tables.data(),
                            tokens(),          context_lengths_.shape(0), tables.shape(1)};
        plans_.emplace_back(group, std::make_unique<AttentionPlan>(rows, window, heads_per_kv_head));
        return *plans_.back().second;
    }

    // The tokens' own rows of the factors: cos [tokens, half], then sin.
    const float* factors(const Rope& rope) {
        for (const auto& [key, values] : factors_) {
            if (key == rope.cos.data()) return values.data();
        }
        const std::size_t half = rope.half();
        std::vector<float> values(2 * tokens() * half);
        for (std::size_t t = 0; t < tokens(); ++t) {
            const int position = positions_.data()[t];
            require(position >= 0 && static_cast<std::size_t>(position) < rope.cos.shape(0),
                    "A position lies beyond the rotary factors.");
            const std::size_t from = static_cast<std::size_t>(position) * half;
            std::copy_n(rope.cos.data() + from, half, values.data() + t * half);
            std::copy_n(rope.sin.data() + from, half, values.data() + (tokens() + t) * half);
        }
        factors_.emplace_back(rope.cos.data(), std::move(values));
        return factors_.back().second.data();
    }

private:
    Int1 positions_, row_offsets_, context_lengths_;
    std::vector<Int2> block_tables_;
    std::vector<Slots> slots_;
    std::vector<std::int64_t> highest_slots_;
    std::vector<std::pair<std::size_t, std::unique_ptr<AttentionPlan>>> plans_;
    std::vector<std::pair<const float*, std::vector<float>>> factors_;
};

// A decoder layer; the arrays and weights that it was made of stay alive with it (nb::keep_alive for the weights).
class Layer {
public:
    Layer(const CacheLayout& layout, int heads, float scale, const Rope& rope, In1 attention_norm, float attention_eps,
          const Weight& qkv, const Weight& output, In1 mlp_norm, float mlp_eps, const Weight* gate_up,
          const Weight* down, Vector qkv_bias, Vector output_bias, Vector gate_up_bias, Vector down_bias, Vector q_norm,
          Vector k_norm, float qk_eps, Vector post_attention_norm, float post_attention_eps, Vector post_mlp_norm,
          float post_mlp_eps, const std::string& activation, std::size_t group, int window, float softcap)
        : layout_(layout), rope_(rope), group_(group), window_(window), width_(attention_norm.shape(0)) {
        const auto d = static_cast<std::size_t>(layout.head_dim), q_heads = static_cast<std::size_t>(heads);
        const auto kv_heads = static_cast<std::size_t>(layout.kv_heads);
        require(heads > 0 && heads % layout.kv_heads == 0, "Query heads are a multiple of key/value heads.");
        require(window >= 0, "A window is 0 (none) or a number of tokens.");
        require(2 * rope.half() <= d,
                "Rotary factors of " + std::to_string(rope.half()) + " angles do not fit a head.");
        require_matrix(qkv, "qkv", (q_heads + 2 * kv_heads) * d, width_);
        require_matrix(output, "output", width_, q_heads * d);
        attention_.norm = {keep(attention_norm, "attention_norm", width_), attention_eps};
        attention_.post_norm = {keep(post_attention_norm, "post_attention_norm", width_), post_attention_eps};
        attention_.qkv = qkv.matrix(keep(qkv_bias, "qkv_bias", qkv.n));
        attention_.output = output.matrix(keep(output_bias, "output_bias", output.n));
        attention_.q_norm = keep(q_norm, "q_norm", d);
        attention_.k_norm = keep(k_norm, "k_norm", d);
        attention_.qk_eps = qk_eps;
        attention_.heads = heads;
        attention_.half = static_cast<int>(rope.half());
        attention_.scale = scale;
        attention_.softcap = softcap;
        feed_forward_.norm = {keep(mlp_norm, "mlp_norm", width_), mlp_eps};
        feed_forward_.post_norm = {keep(post_mlp_norm, "post_mlp_norm", width_), post_mlp_eps};
        require((gate_up == nullptr) == (down == nullptr), "A layer has both gate_up and down, or neither.");
        if (gate_up == nullptr) return;
        require(gate_up->gate_up, "gate_up is not packed as a gated product.");
        require(gate_up->k == width_, "gate_up does not have as many columns as the layer is wide.");
        require_matrix(*down, "down", width_, gate_up->features());
        feed_forward_.gate_up = gate_up->matrix(keep(gate_up_bias, "gate_up_bias", gate_up->n));
        feed_forward_.down = down->matrix(keep(down_bias, "down_bias", down->n));
        feed_forward_.gate = gate_of(*gate_up, activation);
    }

    void bind(CacheBytes cache) {
        attention_.cache = cache_over(layout_, cache);
        cache_ = cache;
    }

    bool feeds_forward() const { return feed_forward_.down.data != nullptr; }

    // Raises what does not fit of an adapter.
    void check(const LayerAdapter& adapter) const {
        check_part(adapter.qkv, "qkv", attention_.qkv.n, attention_.qkv.k);
        check_part(adapter.output, "output", attention_.output.n, attention_.output.k);
        if (!feeds_forward()) {
            require(adapter.gate_up == nullptr && adapter.down == nullptr,
                    "An adapter of gate_up or down needs a layer with a feed-forward block.");
            return;
        }
        const Matrix& gated = feed_forward_.gate_up;
        check_part(adapter.gate_up, "gate_up", panel_columns(gated.features()), gated.k);
        check_part(adapter.down, "down", feed_forward_.down.n, feed_forward_.down.k);
    }

    // Both are for who is inside a call.
    void attend(Runner& runner, Step& step, const AdaptedLayer* adapted, const Out2& x) const {
        require_shape(x, "x", {step.tokens(), width_});
        require(attention_.cache.data != nullptr, "The layer has no cache yet: bind one.");
        require(group_ < step.groups(), "The step has no block tables for the layer's group.");
        const std::size_t blocks = cache_->shape(0), room = blocks * BLOCK_TOKENS;
        require(step.highest_slot(group_) < static_cast<std::int64_t>(room), "A slot lies outside the cache.");
        const AttentionPlan& attention = step.attention(group_, window_, attention_.heads / layout_.kv_heads);
        require(attention.blocks_seen <= blocks, "A block that a query sees is not in the cache.");
        const float* factors = step.factors(rope_);
        const LayerPlan plan{attention, step.slots(group_), factors, factors + step.tokens() * rope_.half()};
        run_attention_block(runner, attention_, plan, adapted, x.data());
    }

    void feed_forward(Runner& runner, const AdaptedLayer* adapted, const Out2& x) const {
        require_shape(x, "x", {x.shape(0), width_});
        require(feeds_forward(), "The layer was made without a feed-forward block.");
        run_feed_forward(runner, feed_forward_, static_cast<int>(x.shape(0)), adapted, x.data());
    }

private:
    static void require_matrix(const Weight& weight, const char* name, std::size_t n, std::size_t k) {
        require(!weight.gate_up && weight.n == n && weight.k == k,
                std::string(name) + " is [" + std::to_string(weight.n) + ", " + std::to_string(weight.k) + "] where [" +
                    std::to_string(n) + ", " + std::to_string(k) + "] is needed.");
    }
    static void check_part(const Adapter* adapter, const char* name, int columns, int width) {
        require(adapter == nullptr || (adapter->columns() == columns && adapter->width() == width),
                std::string("An adapter of ") + name + " has b with " + std::to_string(columns) + " rows and a with " +
                    std::to_string(width) + " columns.");
    }
    const float* keep(const Vector& vector, const char* name, std::size_t size) {
        if (!vector) return nullptr;
        require_shape(*vector, name, {size});
        kept_.push_back(*vector);
        return vector->data();
    }

    CacheLayout layout_;
    Rope rope_;
    std::size_t group_;
    int window_;
    std::size_t width_;
    std::vector<In1> kept_;
    std::optional<CacheBytes> cache_;
    AttentionBlock attention_{};
    FeedForward feed_forward_{};
};

void attend(Runner& runner, const Layer& layer, Step& step, Out2 x) {
    Call call(runner);
    layer.attend(runner, step, nullptr, x);
}

void mlp(Runner& runner, const Layer& layer, Out2 x) {
    Call call(runner);
    layer.feed_forward(runner, nullptr, x);
}

// Of each adapter, what it adds to each layer.
using LayerAdapters = std::vector<std::vector<const LayerAdapter*>>;

// For each layer its adapters; nothing where no token has one.
std::vector<AdaptedLayer> adapt(const std::vector<const Layer*>& layers, const LayerAdapters& adapters,
                                const std::optional<Int1>& index, std::size_t tokens) {
    if (!index) return {};
    require_shape(*index, "index", {tokens});
    const std::int32_t* end = index->data() + tokens;
    const auto count = static_cast<std::int32_t>(adapters.size());
    require(std::all_of(index->data(), end, [count](std::int32_t i) { return i < count; }),
            "A token has an adapter beyond the last of " + std::to_string(count) + ".");
    std::vector<AdaptedLayer> adapted(layers.size(), {{}, index->data()});
    for (const std::vector<const LayerAdapter*>& adapter : adapters) {
        require(adapter.size() == layers.size(), "An adapter has a part for each layer.");
        for (std::size_t at = 0; at < layers.size(); ++at) {
            layers[at]->check(*adapter[at]);
            adapted[at].adapters.push_back(adapter[at]);
        }
    }
    return adapted;
}

void forward(Runner& runner, const std::vector<const Layer*>& layers, Step& step, Out2 x, const LayerAdapters& adapters,
             std::optional<Int1> index) {
    const std::vector<AdaptedLayer> adapted = adapt(layers, adapters, index, step.tokens());
    Call call(runner);
    for (std::size_t at = 0; at < layers.size(); ++at) {
        const AdaptedLayer* here = adapted.empty() ? nullptr : &adapted[at];
        layers[at]->attend(runner, step, here, x);
        if (layers[at]->feeds_forward()) layers[at]->feed_forward(runner, here, x);
    }
}

void require_within(const Int1& indices, std::size_t count, const char* otherwise) {
    const std::int32_t* end = indices.data() + indices.shape(0);
    const auto outside = [count](std::int32_t i) { return i < 0 || static_cast<std::size_t>(i) >= count; };
    require(std::none_of(indices.data(), end, outside), otherwise);
}

void embed(Runner& runner, const Weight& weight, Int1 ids, Out2 out, float scale) {
    require(!weight.gate_up, "A gated weight has no rows to embed.");
    require_shape(out, "out", {ids.shape(0), weight.k});
    require_within(ids, weight.n, "A token is not in the vocabulary.");
    struct Job {
        const Weight& weight;
        const std::int32_t* ids;
        float* out;
        float scale;
    } job{weight, ids.data(), out.data(), scale};
    auto call_row = [](void* pointer, int index, int) {
        const Job& all = *static_cast<const Job*>(pointer);
        const Weight& from = all.weight;
        unpack_row(from.kind, from.data.data(), from.k, static_cast<std::size_t>(all.ids[index]), all.scale,
                   all.out + static_cast<std::size_t>(index) * from.k);
    };
    Call call(runner);
    call.parallel.run(call.parallel.pool, call_row, &job, static_cast<int>(ids.shape(0)));
}

void logits(Runner& runner, In1 norm, float eps, const Weight& head, In2 x, Int1 tokens, Out2 out, float softcap) {
    require(!head.gate_up, "A gated weight gives no logits.");
    require_shape(x, "x", {x.shape(0), head.k});
    require_shape(norm, "norm", {head.k});
    require_shape(out, "out", {tokens.shape(0), head.n});
    require_within(tokens, x.shape(0), "A token whose logits are wanted is not in the step.");
    const InputRows rows{x.data(), static_cast<int>(tokens.shape(0)), {norm.data(), eps}, tokens.data()};
    Call call(runner);
    multiply(runner, head.matrix(nullptr), rows, NO_GATE, nullptr, out.data());
    const auto count = static_cast<std::int64_t>(out.shape(0) * out.shape(1));
    if (softcap != 0.0f) runner.kernels.softcap(call.parallel, out.data(), count, softcap);
}

}  // namespace

void bind_layers(nb::module_& module) {
    nb::class_<Rope>(module, "Rope").def(nb::init<In2, In2>(), nb::arg("cos").noconvert(), nb::arg("sin").noconvert());
    nb::class_<Step>(module, "Step")
        .def(nb::init<Int1, Int1, Int1, std::vector<Int2>, std::vector<Slots>>(), nb::arg("positions").noconvert(),
             nb::arg("row_offsets").noconvert(), nb::arg("context_lengths").noconvert(), nb::arg("block_tables"),
             nb::arg("slots"));
    nb::class_<Layer>(module, "Layer")
        .def(nb::init<const CacheLayout&, int, float, const Rope&, In1, float, const Weight&, const Weight&, In1, float,
                      const Weight*, const Weight*, Vector, Vector, Vector, Vector, Vector, Vector, float, Vector,
                      float, Vector, float, const std::string&, std::size_t, int, float>(),
             nb::kw_only(), nb::arg("layout"), nb::arg("heads"), nb::arg("scale"), nb::arg("rope"),
             nb::arg("attention_norm").noconvert(), nb::arg("attention_eps"), nb::arg("qkv"), nb::arg("output"),
             nb::arg("mlp_norm").noconvert(), nb::arg("mlp_eps"), nb::arg("gate_up") = nb::none(),
             nb::arg("down") = nb::none(), nb::arg("qkv_bias").noconvert() = nb::none(),
             nb::arg("output_bias").noconvert() = nb::none(), nb::arg("gate_up_bias").noconvert() = nb::none(),
             nb::arg("down_bias").noconvert() = nb::none(), nb::arg("q_norm").noconvert() = nb::none(),
             nb::arg("k_norm").noconvert() = nb::none(), nb::arg("qk_eps") = 1e-6f,
             nb::arg("post_attention_norm").noconvert() = nb::none(), nb::arg("post_attention_eps") = 1e-6f,
             nb::arg("post_mlp_norm").noconvert() = nb::none(), nb::arg("post_mlp_eps") = 1e-6f,
             nb::arg("activation") = "silu", nb::arg("group") = 0, nb::arg("window") = 0, nb::arg("softcap") = 0.0f,
             nb::keep_alive<1, 8>(), nb::keep_alive<1, 9>(), nb::keep_alive<1, 12>(), nb::keep_alive<1, 13>())
        .def("bind", &Layer::bind, nb::arg("cache").noconvert());
    module.def("attend", &attend, nb::arg("pool"), nb::arg("layer"), nb::arg("step"), nb::arg("x").noconvert());
    module.def("mlp", &mlp, nb::arg("pool"), nb::arg("layer"), nb::arg("x").noconvert());
    nb::class_<LayerAdapter>(module, "LayerLora")
        .def(nb::init<const Adapter*, const Adapter*, const Adapter*, const Adapter*>(), nb::kw_only(),
             nb::arg("qkv") = nb::none(), nb::arg("output") = nb::none(), nb::arg("gate_up") = nb::none(),
             nb::arg("down") = nb::none(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(),
             nb::keep_alive<1, 5>());
    module.def("forward", &forward, nb::arg("pool"), nb::arg("layers"), nb::arg("step"), nb::arg("x").noconvert(),
               nb::arg("adapters") = LayerAdapters{}, nb::arg("index").noconvert() = nb::none());
    module.def("embed", &embed, nb::arg("pool"), nb::arg("weight"), nb::arg("ids").noconvert(),
               nb::arg("out").noconvert(), nb::arg("scale") = 1.0f);
    module.def("logits", &logits, nb::arg("pool"), nb::arg("norm").noconvert(), nb::arg("eps"), nb::arg("head"),
               nb::arg("x").noconvert(), nb::arg("tokens").noconvert(), nb::arg("out").noconvert(),
               nb::arg("softcap") = 0.0f);
}

}  // namespace octavo
