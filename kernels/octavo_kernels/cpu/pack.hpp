// From weights as files hold them to the layouts of kernels.hpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels.hpp"

namespace octavo {

// Rows of a source: `rows` rows of `row_bytes` bytes.
struct Plane {
    const std::uint8_t* data;
    std::size_t rows, row_bytes;
};

// Bytes of a packed matrix [n, k].
std::size_t packed_bytes(WeightKind kind, std::size_t n, std::size_t k);

// How weights of `source` (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q6_K) are packed; target is "" for their
// own precision (F16 has none here), or, for float sources, F32, BF16, INT8 or INT4. Throws std::invalid_argument.
WeightKind choose_packing(const std::string& source, const std::string& target);

// Bytes of a row of k weights of `source`. Throws std::invalid_argument if k is not a whole number of its blocks.
std::size_t source_row_bytes(const std::string& source, std::size_t k);

// Pack planes below each other (gate_up: two planes of equal height, 16 rows of each in turn) into `out`. The bytes are
// the same whichever variant packs.
void pack(const Kernels& kernels, const Parallel& parallel, const std::string& source, WeightKind kind,
          const std::vector<Plane>& planes, std::size_t k, bool gate_up, std::uint8_t* out);

}  // namespace octavo
