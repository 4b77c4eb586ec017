#include "unpack.hpp"

#include <cstring>

#include "pack_quantised.hpp"

namespace octavo {
namespace {

// A group of a feature: what the unit is multiplied by.
void unpack_four_bits(const std::uint8_t* record, std::size_t feature, float unit, float scale, float* out) {
    std::int16_t factors[2];  // step and middle
    std::memcpy(factors, record + quant_bytes(U4) + feature * 4, 4);
    const std::uint8_t* quants = record + feature % 16 * 4;
    for (int i = 0; i < GROUP; ++i) {
        const int both = quants[i / 4 * 64 + i % 4], quant = feature < 16 ? both & 15 : both >> 4;
        out[i] = unit * static_cast<float>(factors[0] * (quant - 8) + factors[1]) * scale;
    }
}

void unpack_eight_bits(const std::uint8_t* record, std::size_t feature, float unit, float scale, float* out) {
    std::int16_t step;
    std::memcpy(&step, record + quant_bytes(U8) + feature * 2, 2);
    const std::uint8_t* quants = record + feature * 4;
    for (int i = 0; i < GROUP; ++i)
        out[i] = unit * static_cast<float>(step * (quants[i / 4 * 128 + i % 4] - 128)) * scale;
}

}  // namespace

void unpack_row(WeightKind kind, const std::uint8_t* data, std::size_t k, std::size_t row, float scale, float* out) {
    const std::size_t panel = row / PANEL, feature = row % PANEL;
    if (kind == F32) {
        const auto* values = reinterpret_cast<const float*>(data) + panel * k * PANEL + feature;
        for (std::size_t i = 0; i < k; ++i) out[i] = values[i * PANEL] * scale;
        return;
    }
    if (kind == BF16) {
        const std::uint8_t* pairs = data + (panel * ((k + 1) / 2) * PANEL + feature) * 4;
        for (std::size_t i = 0; i < k; ++i) {
            std::uint16_t upper;
            std::memcpy(&upper, pairs + i / 2 * PANEL * 4 + i % 2 * 2, 2);
            const std::uint32_t bits = static_cast<std::uint32_t>(upper) << 16;
            float value;
            std::memcpy(&value, &bits, 4);
            out[i] = value * scale;
        }
        return;
    }
    const std::size_t groups = k / GROUP;
    const std::uint8_t* from = data + panel * panel_bytes(kind, groups);
    for (std::size_t g = 0; g < groups; ++g) {
        const RecordPlace place = record_place(kind, g, groups);
        float unit;
        std::memcpy(&unit, from + place.units + feature * 4, 4);
        const auto unpack = kind == U8 ? unpack_eight_bits : unpack_four_bits;
        unpack(from + place.record, feature, unit, scale, out + g * GROUP);
    }
}

}  // namespace octavo
