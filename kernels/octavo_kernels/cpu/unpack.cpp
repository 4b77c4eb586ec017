#include "unpack.hpp"

#include <cstring>

#include "pack_quantised.hpp"

namespace octavo {
namespace {

// A group of a feature.
void unpack_four_bits(const std::uint8_t* record, std::size_t feature, float unit, float scale, float* out) {
    const auto place = static_cast<std::size_t>(nibble_place(static_cast<int>(feature)));
    const std::uint8_t *quants = record + place * 16, *steps = record + NIBBLE_BYTES;
    std::uint16_t base;
    std::memcpy(&base, steps + PANEL + place * 2, 2);
    for (int i = 0; i < GROUP; ++i) {
        const int quant = i < 16 ? quants[i] & 15 : quants[i - 16] >> 4;
        out[i] = unit * static_cast<float>((16 * steps[place] * quant + base >> 8) - 128) * scale;
    }
}

void unpack_eight_bits(const std::uint8_t* record, std::size_t feature, float unit, float scale, float* out) {
    const std::uint8_t* bytes = record + feature * 4;
    for (int i = 0; i < GROUP; ++i) out[i] = unit * static_cast<float>(bytes[i / 4 * 128 + i % 4] - 128) * scale;
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
