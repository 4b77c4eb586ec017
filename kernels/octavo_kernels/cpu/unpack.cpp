#include "unpack.hpp"

#include <cstring>

#include "blocks.hpp"
#include "pack.hpp"
#include "pack_split.hpp"

namespace octavo {
namespace {

float factor_at(const std::uint8_t* plane, std::size_t feature, bool wide) {
    if (wide) {
        float value;
        std::memcpy(&value, plane + feature * 4, 4);
        return value;
    }
    std::uint16_t half;
    std::memcpy(&half, plane + feature * 2, 2);
    return half_to_float(half);
}

void unpack_record(const RecordShape& shape, int zero, const std::uint8_t* record, std::size_t feature, float scale,
                   float* out) {
    const std::size_t plane = shape.wide ? 128 : 64;
    const std::uint8_t* factors = record + U8_QUANT_BYTES;
    const float minimum =
        shape.minima ? factor_at(factors + static_cast<std::size_t>(shape.scales) * plane, feature, shape.wide) : 0.0f;
    const std::uint8_t* quants = record + feature * 4;
    for (int part = 0; part < shape.scales; ++part) {
        const float factor = factor_at(factors + static_cast<std::size_t>(part) * plane, feature, shape.wide);
        for (int i = part * GROUP / shape.scales; i < (part + 1) * GROUP / shape.scales; ++i) {
            const float value = factor * static_cast<float>(quants[i / 4 * 128 + i % 4] - zero);
            out[i] = (shape.minima ? value + minimum : value) * scale;
        }
    }
}

void unpack_split_group(const std::uint8_t* panel, SplitPlace place, std::size_t feature, float scale, float* out) {
    float unit;
    std::int16_t factors[2];  // step and middle
    std::memcpy(&unit, panel + place.units + feature * 4, 4);
    std::memcpy(factors, panel + place.record + SPLIT_QUANT_BYTES + feature * 4, 4);
    const std::uint8_t* quants = panel + place.record + feature % 16 * 4;
    for (int i = 0; i < GROUP; ++i) {
        const int both = quants[i / 4 * 64 + i % 4], quant = feature < 16 ? both & 15 : both >> 4;
        out[i] = unit * static_cast<float>(factors[0] * (quant - 8) + factors[1]) * scale;
    }
}

}  // namespace

void unpack_row(WeightKind kind, int zero_shift, const std::uint8_t* data, std::size_t k, std::size_t row, float scale,
                float* out) {
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
    if (kind == U4) {
        const std::uint8_t* from = data + panel * split_panel_bytes(groups);
        for (std::size_t g = 0; g < groups; ++g)
            unpack_split_group(from, split_place(g, groups), feature, scale, out + g * GROUP);
        return;
    }
    const RecordShape shape = record_shape(kind);
    const std::size_t bytes = record_bytes(shape);
    const int zero = shape.minima ? 0 : 128 >> zero_shift;
    for (std::size_t g = 0; g < groups; ++g) {
        unpack_record(shape, zero, data + (panel * groups + g) * bytes, feature, scale, out + g * GROUP);
    }
}

}  // namespace octavo
