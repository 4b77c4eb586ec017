// The mixture of experts, as Python sees it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "experts.hpp"
#include "weight.hpp"

namespace octavo {
namespace {

using OutInt2 = nb::ndarray<std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// What Python holds: the experts, and the weights that they point into.
struct ExpertsObject {
    Experts experts;
    std::vector<Weight> kept;

    ExpertsObject(const std::vector<const Weight*>& gate_up, const std::vector<const Weight*>& down,
                  const std::string& activation) {
        require(!gate_up.empty() && gate_up.size() == down.size(),
                "Experts need as many down projections as gated ones, and at least one.");
        const Weight &first_up = *gate_up[0], &first_down = *down[0];
        require(first_up.gate_up && first_down.k == first_up.features() && first_down.n == first_up.k,
                "An expert is a gated projection [2 * features, width] and one back [width, features].");
        experts.width = static_cast<int>(first_up.k);
        experts.features = static_cast<int>(first_up.features());
        experts.gate = gate_of(first_up, activation);
        experts.gate_up = take(gate_up);
        experts.down = take(down);
    }

    std::vector<ExpertMatrix> take(const std::vector<const Weight*>& weights) {
        std::vector<ExpertMatrix> matrices;
        for (const Weight* weight : weights) {
            const Weight& first = *weights[0];
            require(weight->n == first.n && weight->k == first.k && weight->kind == first.kind &&
                        weight->gate_up == first.gate_up,
                    "Experts of one layer have the same shapes and kinds of weights.");
            matrices.push_back({weight->kind, weight->data.data()});
            kept.push_back(*weight);
        }
        return matrices;
    }
};

void experts(Runner& runner, In2 x, const ExpertsObject& object, Int2 chosen, In2 weights, Out2 out,
             std::optional<In2> residual) {
    const auto width = static_cast<std::size_t>(object.experts.width);
    const std::size_t rows = x.shape(0), top_k = chosen.shape(1);
    require_shape(x, "x", {rows, width});
    require_shape(chosen, "chosen", {rows, top_k});
    require_shape(weights, "weights", {rows, top_k});
    require_shape(out, "out", {rows, width});
    if (residual) require_shape(*residual, "residual", {rows, width});
    const auto count = static_cast<std::int32_t>(object.experts.gate_up.size());
    for (std::size_t i = 0; i < rows * top_k; ++i) {
        const std::int32_t expert = chosen.data()[i];
        require(expert >= -1 && expert < count,
                "Expert " + std::to_string(expert) + " is not among the layer's " + std::to_string(count) + ".");
    }
    Call call(runner);
    run_experts(runner.kernels, runner.pool, object.experts,
                {x.data(), chosen.data(), weights.data(), static_cast<int>(rows), static_cast<int>(top_k),
                 data_or_null(residual), out.data()});
}

void route(Runner& runner, In2 logits, OutInt2 chosen, Out2 weights, bool normalize) {
    const std::size_t rows = logits.shape(0), experts = logits.shape(1), top_k = chosen.shape(1);
    require_shape(chosen, "chosen", {rows, top_k});
    require_shape(weights, "weights", {rows, top_k});
    require(top_k >= 1 && top_k <= experts,
            "A row goes to 1 to " + std::to_string(experts) + " experts, not " + std::to_string(top_k) + ".");
    Call call(runner);
    runner.kernels.route(call.parallel, {logits.data(), chosen.data(), weights.data(), static_cast<int>(rows),
                                         static_cast<int>(experts), static_cast<int>(top_k), normalize});
}

}  // namespace

void bind_experts(nb::module_& module) {
    nb::class_<ExpertsObject>(module, "Experts")
        .def(nb::init<const std::vector<const Weight*>&, const std::vector<const Weight*>&, const std::string&>(),
             nb::arg("gate_up"), nb::arg("down"), nb::arg("activation") = "silu")
        .def_prop_ro("count", [](const ExpertsObject& object) { return object.experts.gate_up.size(); });
    module.def("experts", &experts, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("experts"),
               nb::arg("chosen").noconvert(), nb::arg("weights").noconvert(), nb::arg("out").noconvert(),
               nb::arg("residual").noconvert() = nb::none());
    module.def("route", &route, nb::arg("pool"), nb::arg("logits").noconvert(), nb::arg("chosen").noconvert(),
               nb::arg("weights").noconvert(), nb::arg("normalize"));
}

}  // namespace octavo
