// Packed weights and the matrix product, as Python sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "pack.hpp"
#include "weight.hpp"

namespace octavo {
namespace {

using OutBytes1 = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const char* const KIND_NAMES[] = {"f32", "bf16", "u8", "u4"};

}  // namespace

Weight::Weight(const std::string& layout, std::size_t n, std::size_t k, bool gate_up, Bytes1 data)
    : kind(WEIGHT_KINDS), n(n), k(k), gate_up(gate_up), data(data) {
    for (int i = 0; i < WEIGHT_KINDS; ++i) {
        if (layout == KIND_NAMES[i]) kind = static_cast<WeightKind>(i);
    }
    require(kind != WEIGHT_KINDS, "There is no packed layout " + layout + ".");
    require(n > 0 && k > 0 && (!gate_up || n % 2 == 0),
            "A weight has at least one row and column, gate and up equally many rows.");
    require(quantised() ? k % GROUP == 0 : true, "Rows of quantised weights are whole groups of 32.");
    require(data.shape(0) == packed_bytes(kind, n, k), "The packed weight has " + std::to_string(data.shape(0)) +
                                                           " bytes where " + std::to_string(packed_bytes(kind, n, k)) +
                                                           " are needed: pack it again.");
}

Gate gate_named(const std::string& activation) {
    require(activation == "silu" || activation == "gelu_tanh",
            "The activation of a gated product is silu or gelu_tanh, not " + activation + ".");
    return activation == "silu" ? GATE_SILU : GATE_GELU_TANH;
}

Gate gate_of(const Weight& weight, const std::string& activation) {
    const Gate gate = gate_named(activation);
    return weight.gate_up ? gate : NO_GATE;
}

namespace {

nb::tuple plan_packing(const std::string& source, std::size_t n, std::size_t k, const std::string& target) {
    const WeightKind kind = choose_packing(source, target);
    const bool floats = kind == F32 || kind == BF16;
    require(floats || k % GROUP == 0, "Rows of " + std::to_string(k) + " weights are not whole groups of 32.");
    return nb::make_tuple(KIND_NAMES[kind], packed_bytes(kind, n, k));
}

void pack_into(Runner& runner, const std::string& source, const std::vector<Bytes2>& planes, std::size_t k,
               const std::string& target, bool gate_up, OutBytes1 out) {
    const WeightKind kind = choose_packing(source, target);
    const std::size_t row_bytes = source_row_bytes(source, k);
    require(gate_up ? planes.size() == 2 && planes[0].shape(0) == planes[1].shape(0) : !planes.empty(),
            "Gate and up are two planes of equal height.");
    std::vector<Plane> rows;
    std::size_t n = 0;
    for (const Bytes2& plane : planes) {
        require_shape(plane, "plane", {plane.shape(0), row_bytes});
        rows.push_back({plane.data(), plane.shape(0), row_bytes});
        n += plane.shape(0);
    }
    require_shape(out, "out", {packed_bytes(kind, n, k)});
    Call call(runner);
    pack(runner.kernels, call.parallel, source, kind, rows, k, gate_up, out.data());
}

void linear(Runner& runner, In2 x, const Weight& weight, Out2 out, std::optional<In2> residual, std::optional<In1> bias,
            const std::string& activation) {
    const std::size_t rows = x.shape(0), k = weight.k;
    require_shape(x, "x", {rows, k});
    require_shape(out, "out", {rows, weight.features()});
    if (residual) require_shape(*residual, "residual", {rows, weight.features()});
    if (bias) require_shape(*bias, "bias", {weight.n});
    const Gate gate = gate_of(weight, activation);
    Call call(runner);
    multiply(runner, weight.matrix(data_or_null(bias)), {x.data(), static_cast<int>(rows)}, gate,
             data_or_null(residual), out.data());
}

}  // namespace

void bind_linear(nb::module_& module) {
    nb::class_<Weight>(module, "Weight")
        .def(nb::init<const std::string&, std::size_t, std::size_t, bool, Bytes1>(), nb::arg("layout"), nb::arg("n"),
             nb::arg("k"), nb::arg("gate_up"), nb::arg("data").noconvert())
        .def_prop_ro("layout", [](const Weight& weight) { return KIND_NAMES[weight.kind]; })
        .def_ro("n", &Weight::n)
        .def_ro("k", &Weight::k)
        .def_ro("gate_up", &Weight::gate_up)
        .def_prop_ro("features", &Weight::features)
        .def_prop_ro("nbytes", [](const Weight& weight) { return weight.data.shape(0); });
    module.def("plan_packing", &plan_packing, nb::arg("source"), nb::arg("n"), nb::arg("k"), nb::arg("target") = "");
    module.def("pack_into", &pack_into, nb::arg("pool"), nb::arg("source"), nb::arg("planes"), nb::arg("k"),
               nb::arg("target"), nb::arg("gate_up"), nb::arg("out").noconvert());
    module.def("linear", &linear, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("weight"),
               nb::arg("out").noconvert(), nb::arg("residual").noconvert() = nb::none(),
               nb::arg("bias").noconvert() = nb::none(), nb::arg("activation") = "silu");
}

}  // namespace octavo
