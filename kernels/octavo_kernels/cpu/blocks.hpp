// Groups of 32 weights, read from the blocks of GGUF files, and the conversions of single numbers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace octavo {

// weight i = scale[i / 16] * quants[i] + minimum[i / 16]
struct GroupCode {
    std::uint8_t quants[32];
    float scale[2];
    float minimum[2];

    float weight(int i) const { return scale[i / 16] * static_cast<float>(quants[i]) + minimum[i / 16]; }
};

// Reads group g of a row of GGUF blocks.
using GroupReader = GroupCode (*)(const std::uint8_t* row, std::size_t g);

// The reader of a GGUF kind. Throws std::invalid_argument if it has none.
GroupReader group_reader(const std::string& source);

// A row of F32, F16, BF16 or of GGUF blocks as floats.
void read_floats(const std::string& source, const std::uint8_t* row, std::size_t count, float* out);

float half_to_float(std::uint16_t half);
std::uint16_t float_to_half(float value);  // to nearest even
std::uint16_t float_to_bf16(float value);  // to nearest even

}  // namespace octavo
