// What the binding's files share: the Python-side objects and the checks of arguments.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>

#include "attention_plan.hpp"

namespace octavo {

namespace nb = nanobind;

using In1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using In2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using In3 = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Out2 = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Out3 = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Int1 = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int2 = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Slots = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes1 = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes2 = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using CacheBytes = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::device::cpu>;

// One call into the kernels: other Python threads run meanwhile, other calls wait. Its time counts as the pool's.
struct Call {
    explicit Call(Runner& runner)
        : runner(runner), lock(runner.pool.mutex(), std::defer_lock), parallel(runner.pool.parallel()) {
        lock.lock();
        begin = std::chrono::steady_clock::now();
    }
    ~Call() {
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
        runner.seconds_inside.store(runner.seconds_inside.load(std::memory_order_relaxed) + spent.count());
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    Runner& runner;
    nb::gil_scoped_release release;
    std::unique_lock<std::mutex> lock;
    Parallel parallel;
    std::chrono::steady_clock::time_point begin;
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

// The memory of a layer's cache, if it is as the layout says.
Cache cache_over(const CacheLayout& layout, const CacheBytes& bytes);

void bind_linear(nb::module_& module);
void bind_attention(nb::module_& module);
void bind_sampling(nb::module_& module);
void bind_layers(nb::module_& module);
void bind_experts(nb::module_& module);
void bind_lora(nb::module_& module);

}  // namespace octavo
