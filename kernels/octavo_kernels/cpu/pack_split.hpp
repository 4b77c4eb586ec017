// Weights of 4 bits as kernels.hpp's U4 holds them: whole steps of one unit in each chunk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace octavo {

constexpr std::size_t SPLIT_QUANT_BYTES = 512;
constexpr std::size_t SPLIT_RECORD_BYTES = SPLIT_QUANT_BYTES + PANEL * 4;
constexpr std::size_t UNIT_BYTES = PANEL * 4;

// Bytes of a panel of `groups` groups.
std::size_t split_panel_bytes(std::size_t groups);

// Where the units of a group's chunk and its record lie in a panel.
struct SplitPlace {
    std::size_t units, record;
};
SplitPlace split_place(std::size_t group, std::size_t groups);

// Writes a panel: first every group's quants and factors, then their common units. What is not set is zero.
class SplitPanel {
public:
    SplitPanel(std::size_t groups, std::uint8_t* out);

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

}  // namespace octavo
