#include "blocks.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "pack.hpp"

namespace octavo {
namespace {

float half_at(const std::uint8_t* at) {
    std::uint16_t half;
    std::memcpy(&half, at, 2);
    return half_to_float(half);
}

// Nibbles of 16 bytes: the low ones are the first 16 weights.
void read_nibbles(const std::uint8_t* bytes, GroupCode& code) {
    for (int i = 0; i < 16; ++i) {
        code.quants[i] = bytes[i] & 15;
        code.quants[i + 16] = bytes[i] >> 4;
    }
}

// The fifth bits of 32 weights.
void add_fifth_bits(const std::uint8_t* bits, GroupCode& code) {
    for (int i = 0; i < 32; ++i)
        code.quants[i] = static_cast<std::uint8_t>(code.quants[i] | (bits[i / 8] >> (i % 8) & 1) << 4);
}

void set_factors(GroupCode& code, float scale, float minimum) {
    code.scale[0] = code.scale[1] = scale;
    code.minimum[0] = code.minimum[1] = minimum;
}

// Blocks of 32: scale, minimum if MINIMA, 32 fifth bits if FIFTH, nibbles.
template <std::size_t BYTES, bool MINIMA, bool FIFTH>
GroupCode read_small_blocks(const std::uint8_t* row, std::size_t g) {
    const std::uint8_t* block = row + g * BYTES;
    GroupCode code{};
    const float scale = half_at(block);
    set_factors(code, scale, MINIMA ? half_at(block + 2) : scale * (FIFTH ? -16.0f : -8.0f));
    read_nibbles(block + BYTES - 16, code);
    if (FIFTH) add_fifth_bits(block + BYTES - 20, code);
    return code;
}

GroupCode read_q8_0(const std::uint8_t* block) {
    GroupCode code{};
    set_factors(code, half_at(block), half_at(block) * -128.0f);
    for (int i = 0; i < 32; ++i) code.quants[i] = static_cast<std::uint8_t>(block[2 + i] ^ 0x80);
    return code;
}

// Blocks of 256: two halves, twelve bytes with eight scales and minima of 6 bits, 128 bytes of nibbles.
GroupCode read_q4_k(const std::uint8_t* block, std::size_t j) {
    GroupCode code{};
    const std::uint8_t* packed = block + 4;
    int scale, minimum;
    if (j < 4) {
        scale = packed[j] & 63;
        minimum = packed[j + 4] & 63;
    } else {
        scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        minimum = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
    }
    set_factors(code, half_at(block) * static_cast<float>(scale), -half_at(block + 2) * static_cast<float>(minimum));
    const std::uint8_t* bytes = block + 16 + j / 2 * 32;
    for (int i = 0; i < 32; ++i) code.quants[i] = j % 2 ? bytes[i] >> 4 : bytes[i] & 15;
    return code;
}

// Blocks of 256: 128 bytes of low nibbles, 64 of upper pairs of bits, 16 scales of 8 bits, a half.
GroupCode read_q6_k(const std::uint8_t* block, std::size_t j) {
    GroupCode code{};
    const std::size_t part = j / 4, quarter = j % 4;
    const std::uint8_t* low = block + part * 64 + quarter % 2 * 32;
    const std::uint8_t* high = block + 128 + part * 32;
    for (int i = 0; i < 32; ++i) {
        const int nibble = quarter < 2 ? low[i] & 15 : low[i] >> 4;
        code.quants[i] = static_cast<std::uint8_t>(nibble | (high[i] >> (2 * quarter) & 3) << 4);
    }
    const float d = half_at(block + 208);
    for (std::size_t s = 0; s < 2; ++s) {
        code.scale[s] = d * static_cast<float>(static_cast<std::int8_t>(block[192 + j * 2 + s]));
        code.minimum[s] = code.scale[s] * -32.0f;
    }
    return code;
}

}  // namespace

GroupReader group_reader(const std::string& source) {
    if (source == "Q8_0") return [](const std::uint8_t* row, std::size_t g) { return read_q8_0(row + g * 34); };
    if (source == "Q4_0") return read_small_blocks<18, false, false>;
    if (source == "Q4_1") return read_small_blocks<20, true, false>;
    if (source == "Q5_0") return read_small_blocks<22, false, true>;
    if (source == "Q5_1") return read_small_blocks<24, true, true>;
    if (source == "Q4_K")
        return [](const std::uint8_t* row, std::size_t g) { return read_q4_k(row + g / 8 * 144, g % 8); };
    if (source == "Q6_K")
        return [](const std::uint8_t* row, std::size_t g) { return read_q6_k(row + g / 8 * 210, g % 8); };
    throw std::invalid_argument("Weights of kind " + source + " have no groups.");
}

std::size_t source_row_bytes(const std::string& source, std::size_t k) {
    if (source == "F32") return k * 4;
    if (source == "F16" || source == "BF16") return k * 2;
    std::size_t block = 32, bytes = 0;
    if (source == "Q8_0") bytes = 34;
    if (source == "Q4_0") bytes = 18;
    if (source == "Q4_1") bytes = 20;
    if (source == "Q5_0") bytes = 22;
    if (source == "Q5_1") bytes = 24;
    if (source == "Q4_K") block = 256, bytes = 144;
    if (source == "Q6_K") block = 256, bytes = 210;
    if (bytes == 0) throw std::invalid_argument("Weights of kind " + source + " are unknown.");
    if (k % block) {
        throw std::invalid_argument("Rows of " + std::to_string(k) + " weights are not whole blocks of " + source +
                                    ": use a multiple of " + std::to_string(block) + ".");
    }
    return k / block * bytes;
}

void read_floats(const std::string& source, const std::uint8_t* row, std::size_t count, float* out) {
    if (source == "F32") {
        std::memcpy(out, row, count * 4);
    } else if (source == "F16") {
        for (std::size_t i = 0; i < count; ++i) out[i] = half_at(row + i * 2);
    } else if (source != "BF16") {
        const GroupReader read = group_reader(source);
        for (std::size_t g = 0; g < count / 32; ++g) {
            const GroupCode code = read(row, g);
            for (int i = 0; i < 32; ++i) *out++ = code.weight(i);
        }
    } else {
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint32_t bits = static_cast<std::uint32_t>(row[i * 2] | row[i * 2 + 1] << 8) << 16;
            std::memcpy(out + i, &bits, 4);
        }
    }
}

float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    if (magnitude < 0x400) {  // multiples of 2^-24
        const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    const std::uint32_t exponent = magnitude >= 0x7c00 ? 0x70000000u : 0x38000000u;
    return std::bit_cast<float>(sign | ((magnitude << 13) + exponent));
}

std::uint16_t float_to_half(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), magnitude = bits & 0x7fffffffu;
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
    if (magnitude > 0x7f800000u) return sign | 0x7e00;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00;  // 65520
    if (magnitude < 0x38800000u) {                       // 2^-14: adding 0.5 rounds to multiples of 2^-24
        const std::uint32_t sum = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f);
        return static_cast<std::uint16_t>(sign | (sum - 0x3f000000u));
    }
    return static_cast<std::uint16_t>(sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000u) >> 13);
}

std::uint16_t float_to_bf16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace octavo
