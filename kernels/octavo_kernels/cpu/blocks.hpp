// Groups of 32 weights, read from the blocks of GGUF files or made from floats.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace octavo {

// weight = scale[i / 16 if there are two] * (quant - zero of the packing) + minimum
struct GroupCode {
    std::uint8_t quants[32];
    float scale[2];
    float minimum;
};

// Group g of a row of GGUF blocks.
GroupCode read_group(const std::string& source, const std::uint8_t* row, std::size_t g);

// A row of F32, F16 or BF16 as floats.
void read_floats(const std::string& source, const std::uint8_t* row, std::size_t count, float* out);

GroupCode quantise_int8(const float* values);
GroupCode quantise_int4(const float* values);

float half_to_float(std::uint16_t half);
std::uint16_t float_to_half(float value);  // to nearest even
std::uint16_t float_to_bf16(float value);  // to nearest even

}  // namespace octavo
