// A packed weight as Python holds it.
#pragma once
#include "binding.hpp"
#include "product.hpp"

namespace octavo {

// [n, k]. Its bytes belong to the array that it was made from, which it keeps alive.
struct Weight {
    WeightKind kind;
    std::size_t n, k;
    bool gate_up;
    Bytes1 data;

    Weight(const std::string& layout, std::size_t n, std::size_t k, bool gate_up, Bytes1 data);
    bool quantised() const { return kind != F32 && kind != BF16; }
    std::size_t features() const { return gate_up ? n / 2 : n; }
    Matrix matrix(const float* bias) const {
        return {kind, data.data(), static_cast<int>(n), static_cast<int>(k), gate_up, bias};
    }
};

// The gate of an activation's name, silu or gelu_tanh; and of a weight's product.
Gate gate_named(const std::string& activation);
Gate gate_of(const Weight& weight, const std::string& activation);

}  // namespace octavo
