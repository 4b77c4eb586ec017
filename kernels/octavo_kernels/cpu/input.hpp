// Activations on their way into a product, as the kind of its weights wants them, in one piece of memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.hpp"

namespace octavo {

struct Input {
    void* rows = nullptr;  // of floats
    SplitRows split{};     // of U8 and U4
};

// Bytes for `rows` rows of k features.
std::size_t input_bytes(WeightKind kind, std::size_t rows, std::size_t k);

// Lays rows out in 64-byte aligned memory of as many bytes.
Input input_at(WeightKind kind, std::size_t rows, std::size_t k, std::uint8_t* memory);

// The rows of an input from `row` on.
Input rows_from(const Input& input, WeightKind kind, std::size_t k, std::size_t row);

void set_input(Gemm& gemm, const Input& input);
void set_input(Prepare& job, const Input& input);

}  // namespace octavo
