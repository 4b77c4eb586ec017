// What the binding's files share: the Python-side objects and the checks of arguments.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "isa.hpp"
#include "pool.hpp"

namespace octavo {

namespace nb = nanobind;

using In1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using In2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using In3 = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Out2 = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Out3 = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Bytes2 = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// The pool that Python holds, with the variant that its calls run.
struct Runner {
    Runner(int threads, int spin_us) : pool(threads, spin_us), kernels(choose_variant()) {}
    Pool pool;
    const Kernels& kernels;
};

// One call into the kernels: other Python threads run meanwhile, other calls wait.
struct Call {
    explicit Call(Runner& runner) : lock(runner.pool.mutex(), std::defer_lock), parallel(runner.pool.parallel()) {
        lock.lock();
    }
    nb::gil_scoped_release release;
    std::unique_lock<std::mutex> lock;
    Parallel parallel;
};

inline void require(bool fine, const std::string& otherwise) {
    if (!fine) throw nb::value_error(otherwise.c_str());
}

template <class Array>
void require_shape(const Array& array, const char* name, std::initializer_list<std::size_t> shape) {
    bool fine = array.ndim() == shape.size();
    std::string wanted, given;
    std::size_t axis = 0;
    for (const std::size_t size : shape) {
        if (fine && array.shape(axis) != size) fine = false;
        wanted += (axis ? ", " : "") + std::to_string(size);
        ++axis;
    }
    for (std::size_t i = 0; i < array.ndim(); ++i) given += (i ? ", " : "") + std::to_string(array.shape(i));
    require(fine, std::string(name) + " has shape [" + given + "] where [" + wanted + "] is needed.");
}

template <class Array>
auto data_or_null(const std::optional<Array>& array) {
    return array ? array->data() : nullptr;
}

void bind_linear(nb::module_& module);
void bind_attention(nb::module_& module);
void bind_sampling(nb::module_& module);

}  // namespace octavo
