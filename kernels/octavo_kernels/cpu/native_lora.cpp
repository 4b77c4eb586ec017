// Low-rank adapters, as Python sees them.
#include <nanobind/stl/vector.h>

#include "adapters.hpp"
#include "weight.hpp"

namespace octavo {
namespace {

using AnyMatrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

AdapterMatrix matrix_of(const AnyMatrix& array, const char* name) {
    const bool f32 = array.dtype() == nb::dtype<float>(), bf16 = array.dtype() == nb::dtype<std::uint16_t>();
    require(f32 || bf16, std::string(name) + " is float32, or uint16 with the bits of bfloat16.");
    return {array.data(), bf16};
}

Adapter* make_adapter(AnyMatrix a, AnyMatrix b, float scale) {
    const std::size_t rank = a.shape(0), width = a.shape(1), columns = b.shape(0);
    require(rank > 0 && width > 0 && columns > 0, "An adapter has at least one rank, column and row.");
    require_shape(b, "b", {columns, rank});
    return new Adapter(matrix_of(a, "a"), matrix_of(b, "b"), static_cast<int>(width), static_cast<int>(columns),
                       static_cast<int>(rank), scale);
}

void lora(Runner& runner, In2 x, const std::vector<const Adapter*>& adapters, Int1 index, Out2 out,
          std::size_t begin) {
    const std::size_t rows = x.shape(0);
    require_shape(index, "index", {rows});
    require_shape(out, "out", {rows, out.shape(1)});
    const auto count = static_cast<std::int32_t>(adapters.size());
    for (std::size_t row = 0; row < rows; ++row) {
        const std::int32_t adapter = index.data()[row];
        require(adapter < count, "Row " + std::to_string(row) + " has adapter " + std::to_string(adapter) + " of " +
                                     std::to_string(count) + ".");
    }
    for (const Adapter* adapter : adapters) {
        require_shape(x, "x", {rows, static_cast<std::size_t>(adapter->width())});
        require(adapter->columns() == adapters[0]->columns(), "The adapters of a projection have as many columns each.");
        require(begin + static_cast<std::size_t>(adapter->columns()) <= out.shape(1),
                "The adapters' columns end beyond those of out.");
    }
    if (adapters.empty()) return;
    Call call(runner);
    run_adapters(runner.kernels, runner.pool, adapters,
                 {x.data(), index.data(), static_cast<int>(rows), out.data() + begin,
                  static_cast<std::int64_t>(out.shape(1))});
}

}  // namespace

void bind_lora(nb::module_& module) {
    nb::class_<Adapter>(module, "Lora")
        .def(nb::new_(&make_adapter), nb::arg("a").noconvert(), nb::arg("b").noconvert(), nb::arg("scale"))
        .def_prop_ro("width", &Adapter::width)
        .def_prop_ro("columns", &Adapter::columns)
        .def_prop_ro("rank", &Adapter::rank);
    module.def("lora", &lora, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("adapters"),
               nb::arg("index").noconvert(), nb::arg("out").noconvert(), nb::arg("begin") = 0);
}

}  // namespace octavo
