// Rows of packed weights as floats: the embedding, which the head shares.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.hpp"

namespace octavo {

// out [k] = row of a packed matrix [n, k] that is not gated, times scale.
void unpack_row(WeightKind kind, const std::uint8_t* data, std::size_t k, std::size_t row, float scale, float* out);

}  // namespace octavo
