// Weights of 4 and 8 bits as kernels.hpp has them: whole steps of one unit in each chunk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace octavo {

constexpr std::size_t UNIT_BYTES = PANEL * 4;

// Bytes of the quants of a record of U8 or U4, and of all of it.
std::size_t quant_bytes(WeightKind kind);
std::size_t record_bytes(WeightKind kind);

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

    void set_quants(std::size_t group, std::size_t feature, const std::uint8_t (&quants)[GROUP]);
    // weight = scale * quant + minimum
    void set_factors(std::size_t group, std::size_t feature, float scale, float minimum);
    // A record with 32 float16 scales and minima.
    void take_record(std::size_t group, const std::uint8_t* record);

    // Rounds the factors to steps and middles of a unit, the chunk's largest weight / MOST_UNITS: the largest group's
    // 16 levels are 1,000 to 2,000 units apart, and what this rounds is small beside what 4 bits did. A chunk with a
    // factor that is not finite has NaN as its unit; one of less than 2^-126 is zero.
    void finish();

private:
    struct Factors {
        float scale, minimum;
    };
    void finish_chunk(std::size_t first, std::size_t end, std::size_t feature);

    std::size_t groups_;
    std::uint8_t* out_;
    std::vector<Factors> factors_;  // [groups, 32]
};

// Writes a panel of 8 bits, values [32][k]. A unit is the chunk's largest weight / MOST_UNITS, a group's step the least
// one that its largest weight is at most 127 of; units as above.
void pack_eight_bits(const float* values, std::size_t k, std::uint8_t* out);

}  // namespace octavo
