// The binding of the CPU kernels. The kernels themselves are compiled once per instruction set and chosen at run time;
// this file holds what Python sees of the pool and of the kernels that work row by row.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "binding.hpp"

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

void silu_mul(Runner& runner, In2 gate_up, Out2 out) {
    const std::size_t rows = gate_up.shape(0), width = gate_up.shape(1) / 2;
    require_shape(gate_up, "gate_up", {rows, 2 * width});
    require_shape(out, "out", {rows, width});
    Call call(runner);
    runner.kernels.silu_mul(call.parallel, gate_up.data(), out.data(), static_cast<int>(rows), static_cast<int>(width));
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
    module.def("silu_mul", &silu_mul, nb::arg("pool"), nb::arg("gate_up").noconvert(), nb::arg("out").noconvert());
    bind_linear(module);
    bind_attention(module);
    bind_sampling(module);
    bind_layers(module);
    bind_experts(module);
    bind_lora(module);
}
