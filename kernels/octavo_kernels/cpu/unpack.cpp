#include "unpack.hpp"

#include <cstring>

#include "blocks.hpp"
#include "pack.hpp"

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
    const std::uint8_t* factors = record + shape.quant_bytes;
    const float minimum =
        shape.minima ? factor_at(factors + static_cast<std::size_t>(shape.scales) * plane, feature, shape.wide) : 0.0f;
    const bool nibbles = shape.quant_bytes == 512;
    const std::uint8_t* quants = record + (nibbles ? feature % 16 * 4 : feature * 4);
    for (int part = 0; part < shape.scales; ++part) {
        const float factor = factor_at(factors + static_cast<std::size_t>(part) * plane, feature, shape.wide);
        for (int i = part * GROUP / shape.scales; i < (part + 1) * GROUP / shape.scales; ++i) {
            int quant = quants[i / 4 * (nibbles ? 64 : 128) + i % 4];
            if (nibbles) quant = feature < 16 ? quant & 15 : quant >> 4;
            const float value = factor * static_cast<float>(quant - zero);
            out[i] = (shape.minima ? value + minimum : value) * scale;
        }
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
    const RecordShape shape = record_shape(kind);
    const std::size_t bytes = record_bytes(shape), groups = k / GROUP;
    const int zero = shape.minima ? 0 : 128 >> zero_shift;
    for (std::size_t g = 0; g < groups; ++g) {
        unpack_record(shape, zero, data + (panel * groups + g) * bytes, feature, scale, out + g * GROUP);
    }
}

}  // namespace octavo
