#include "pack_quantised.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "blocks.hpp"

namespace octavo {
namespace {

std::size_t chunk_size(std::size_t groups) { return static_cast<std::size_t>(chunk_groups(static_cast<int>(groups))); }

// A chunk's unit, of its largest magnitude; poison is 0, or not finite.
float unit_of(float largest, float poison) {
    const float unit = largest / 127.0f;
    if (!std::isfinite(poison)) return std::numeric_limits<float>::quiet_NaN();
    return unit < FLT_MIN ? 0.0f : unit;
}

std::size_t place_of(std::size_t feature) { return static_cast<std::size_t>(nibble_place(static_cast<int>(feature))); }

std::size_t bytes_of_record(WeightKind kind) { return static_cast<std::size_t>(record_bytes(kind)); }

}  // namespace

std::size_t panel_bytes(WeightKind kind, std::size_t groups) {
    const std::size_t size = chunk_size(groups);
    return groups * bytes_of_record(kind) + (groups + size - 1) / size * UNIT_BYTES;
}

RecordPlace record_place(WeightKind kind, std::size_t group, std::size_t groups) {
    const std::size_t size = chunk_size(groups), chunk = group / size;
    const std::size_t units = chunk * (size * bytes_of_record(kind) + UNIT_BYTES);
    return {units, units + UNIT_BYTES + group % size * bytes_of_record(kind)};
}

FourBitPanel::FourBitPanel(std::size_t groups, std::uint8_t* out)
    : groups_(groups), out_(out), factors_(groups * PANEL, Factors{0.0f, 0.0f, 0}) {
    std::memset(out, 0, panel_bytes(U4, groups));
}

// The lowest quant of a group is 0 here and its scale is not negative: only what it has takes part in its chunk's unit.
void FourBitPanel::set_group(std::size_t group, std::size_t feature, const std::uint8_t (&quants)[GROUP], float scale,
                             float minimum) {
    const auto [low, high] = std::minmax_element(std::begin(quants), std::end(quants));
    const int lowest = *low, highest = *high;
    const bool falling = scale < 0.0f;
    const auto quant = [&](std::size_t i) { return falling ? highest - quants[i] : quants[i] - lowest; };
    std::uint8_t* bytes = out_ + record_place(U4, group, groups_).record + place_of(feature) * (GROUP / 2);
    for (std::size_t i = 0; i < GROUP / 2; ++i)
        bytes[i] = static_cast<std::uint8_t>(quant(i) | quant(i + GROUP / 2) << 4);
    const float first = static_cast<float>(falling ? highest : lowest);
    factors_[group * PANEL + feature] = {std::fabs(scale), minimum + first * scale, highest - lowest};
}

void FourBitPanel::take_record(std::size_t group, const std::uint8_t* record) {
    std::uint16_t halves[2][PANEL];
    std::memcpy(halves, record + NIBBLE_BYTES, sizeof halves);
    for (std::size_t feature = 0; feature < PANEL; ++feature) {
        const std::uint8_t* bytes = record + place_of(feature) * (GROUP / 2);
        std::uint8_t quants[GROUP];
        for (std::size_t i = 0; i < GROUP / 2; ++i) {
            quants[i] = bytes[i] & 15;
            quants[i + GROUP / 2] = bytes[i] >> 4;
        }
        set_group(group, feature, quants, half_to_float(halves[0][feature]), half_to_float(halves[1][feature]));
    }
}

void FourBitPanel::finish_chunk(std::size_t first, std::size_t end, std::size_t feature) {
    float largest = 0.0f, widest = 0.0f, poison = 0.0f;
    for (std::size_t g = first; g < end; ++g) {
        const Factors& f = factors_[g * PANEL + feature];
        const float top = f.minimum + static_cast<float>(f.highest) * f.scale;
        largest = std::max({largest, std::fabs(f.minimum), std::fabs(top)});
        widest = std::max(widest, f.highest > 0 ? f.scale : 0.0f);
        poison += 0.0f * f.minimum + 0.0f * f.scale;
    }
    const float unit = unit_of(std::max(largest, widest * (127.0f * 16.0f / 255.0f)), poison);
    std::memcpy(out_ + record_place(U4, first, groups_).units + feature * 4, &unit, 4);
    if (!(unit > 0.0f)) return;
    for (std::size_t g = first; g < end; ++g) {
        const Factors& f = factors_[g * PANEL + feature];
        const double scale = f.highest > 0 ? double(f.scale) / double(unit) : 0.0;
        const long step = std::min(std::lrint(16.0 * scale), 255L);
        // A step is rounded around the middle quant; what comes after the point of a byte, to the nearest. Bytes are
        // not 0.
        const double middle = double(f.minimum) / double(unit) + f.highest / 2.0 * (scale - double(step) / 16.0);
        const auto base = static_cast<std::uint16_t>(
            std::clamp(std::lrint(256.0 * (middle + 128.0)) + 128, 256L, 65535L - 16 * step * f.highest));
        std::uint8_t* steps = out_ + record_place(U4, g, groups_).record + NIBBLE_BYTES;
        steps[place_of(feature)] = static_cast<std::uint8_t>(step);
        std::memcpy(steps + PANEL + place_of(feature) * 2, &base, 2);
    }
}

void FourBitPanel::finish() {
    const std::size_t size = chunk_size(groups_);
    for (std::size_t first = 0; first < groups_; first += size)
        for (std::size_t feature = 0; feature < PANEL; ++feature)
            finish_chunk(first, std::min(first + size, groups_), feature);
}

namespace {

void pack_group(const float* values, float unit, std::uint8_t* bytes) {
    for (int i = 0; i < GROUP; ++i) {
        const long quant = std::clamp(std::lrint(double(values[i]) / double(unit)), -127L, 127L);
        bytes[i / 4 * 128 + i % 4] = static_cast<std::uint8_t>(quant + 128);
    }
}

}  // namespace

void pack_eight_bits(const float* values, std::size_t k, std::uint8_t* out) {
    const std::size_t groups = k / GROUP, size = chunk_size(groups);
    std::memset(out, 0, panel_bytes(U8, groups));
    for (std::size_t feature = 0; feature < PANEL; ++feature, values += k) {
        for (std::size_t first = 0; first < groups; first += size) {
            const std::size_t end = std::min(first + size, groups);
            float largest = 0.0f, poison = 0.0f;
            for (std::size_t i = first * GROUP; i < end * GROUP; ++i) {
                largest = std::max(largest, std::fabs(values[i]));
                poison += 0.0f * values[i];
            }
            const float unit = unit_of(largest, poison);
            std::memcpy(out + record_place(U8, first, groups).units + feature * 4, &unit, 4);
            if (!(unit > 0.0f)) continue;
            for (std::size_t g = first; g < end; ++g)
                pack_group(values + g * GROUP, unit, out + record_place(U8, g, groups).record + feature * 4);
        }
    }
}

}  // namespace octavo
