// The binding of the CPU kernels. The kernels themselves are compiled once per instruction set and chosen at run time;
// this file holds what Python sees of the pool and of the kernels that work row by row.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "weight.hpp"

namespace octavo {
namespace {

void rms_norm(Runner& runner, In2 x, In1 weight, float eps, Out2 out, std::optional<In2> residual,
              std::optional<Out2> total) {
    const std::size_t rows = x.shape(0), width = x.shape(1);
    require_shape(weight, "weight", {width});
    require_shape(out, "out", {rows, width});
    if (residual) require_shape(*residual, "residual", {rows, width});
    if (total) require_shape(*total, "total", {rows, width});
    const RmsNorm norm{x.data(),   data_or_null(residual), weight.data(),           data_or_null(total),
                       out.data(), static_cast<int>(rows), static_cast<int>(width), eps};
    Call call(runner);
    runner.kernels.rms_norm(call.parallel, norm);
}

void activate(Runner& runner, In2 panels, Out2 out, const std::string& activation, std::optional<In1> bias) {
    const std::size_t rows = out.shape(0), features = out.shape(1);
    const int columns = panel_columns(static_cast<int>(features));
    require_shape(panels, "panels", {rows, static_cast<std::size_t>(columns)});
    if (bias) require_shape(*bias, "bias", {2 * features});
    const Activation job{panels.data(), data_or_null(bias),     gate_named(activation),
                         out.data(),    static_cast<int>(rows), static_cast<int>(features)};
    Call call(runner);
    runner.kernels.activate(call.parallel, job);
}

std::vector<std::string> variants() {
    std::vector<std::string> names;
    for (const Kernels* variant : supported_variants()) names.emplace_back(variant->name);
    return names;
}

}  // namespace
}  // namespace octavo

NB_MODULE(_native, module) {
    using namespace octavo;
    module.doc() = "Octavo's CPU kernels";
    module.def("variants", &variants);
    nb::class_<Runner>(module, "Pool")
        .def(nb::init<int, int>(), nb::arg("threads"), nb::arg("spin_us") = 50)
        .def_prop_ro("threads", [](const Runner& runner) { return runner.pool.threads(); })
        .def_prop_ro("seconds_inside", [](const Runner& runner) { return runner.seconds_inside.load(); })
        .def_prop_ro("variant", [](const Runner& runner) { return runner.kernels.name; });
    module.def("rms_norm", &rms_norm, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("weight").noconvert(),
               nb::arg("eps"), nb::arg("out").noconvert(), nb::arg("residual").noconvert() = nb::none(),
               nb::arg("total").noconvert() = nb::none());
    module.def("activate", &activate, nb::arg("pool"), nb::arg("panels").noconvert(), nb::arg("out").noconvert(),
               nb::arg("activation") = "silu", nb::arg("bias").noconvert() = nb::none());
    bind_linear(module);
    bind_attention(module);
    bind_sampling(module);
    bind_lora(module);
    bind_layers(module);
    bind_experts(module);
}
