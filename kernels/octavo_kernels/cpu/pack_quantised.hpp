// Weights of 4 and 8 bits as kernels.hpp has them: bytes of one unit in each chunk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace octavo {

// Bytes of a panel of `groups` groups.
std::size_t panel_bytes(WeightKind kind, std::size_t groups);

// Where the units of a group's chunk and its record lie in a panel.
struct RecordPlace {
    std::size_t units, record;
};
RecordPlace record_place(WeightKind kind, std::size_t group, std::size_t groups);

// Writes a panel of 4 bits: first every group's quants and factors, then their common units. What is not set is zero.
class FourBitPanel {
public:
    FourBitPanel(std::size_t groups, std::uint8_t* out);

    // weight = scale * quant + minimum
    void set_group(std::size_t group, std::size_t feature, const std::uint8_t (&quants)[GROUP], float scale,
                   float minimum);
    // Nibbles as a record has them, then 32 float16 scales, none less than 0, and minima: NIBBLE_BYTES + 128 bytes.
    void take_record(std::size_t group, const std::uint8_t* record);

    // Turns scales and minima into steps and bases of a unit: the chunk's largest weight / 127, or a little more where
    // a step would not be less than 256. A chunk with a factor that is not finite has NaN as its unit; one of less than
    // 2^-126 is zero.
    void finish();

private:
    struct Factors {
        float scale, minimum;
        int highest;  // quant
    };
    void finish_chunk(std::size_t first, std::size_t end, std::size_t feature);

    std::size_t groups_;
    std::uint8_t* out_;
    std::vector<Factors> factors_;  // [groups, 32]
};

// Writes a panel of 8 bits, values [32][k]. A unit is the chunk's largest weight / 127; units as above.
void pack_eight_bits(const float* values, std::size_t k, std::uint8_t* out);

}  // namespace octavo
