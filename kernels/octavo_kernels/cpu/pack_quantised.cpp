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

std::int16_t whole(double value) { return static_cast<std::int16_t>(std::lrint(value)); }

// A chunk's unit, of its largest magnitude; poison is 0, or not finite.
float unit_of(float largest, float poison) {
    const float unit = largest / static_cast<float>(MOST_UNITS);
    if (!std::isfinite(poison)) return std::numeric_limits<float>::quiet_NaN();
    return unit < FLT_MIN ? 0.0f : unit;
}

}  // namespace

std::size_t quant_bytes(WeightKind kind) { return kind == U8 ? 1024 : 512; }

std::size_t record_bytes(WeightKind kind) { return quant_bytes(kind) + PANEL * (kind == U8 ? 2 : 4); }

std::size_t panel_bytes(WeightKind kind, std::size_t groups) {
    const std::size_t size = chunk_size(groups);
    return groups * record_bytes(kind) + (groups + size - 1) / size * UNIT_BYTES;
}

RecordPlace record_place(WeightKind kind, std::size_t group, std::size_t groups) {
    const std::size_t size = chunk_size(groups), chunk = group / size;
    const std::size_t units = chunk * (size * record_bytes(kind) + UNIT_BYTES);
    return {units, units + UNIT_BYTES + group % size * record_bytes(kind)};
}

FourBitPanel::FourBitPanel(std::size_t groups, std::uint8_t* out)
    : groups_(groups), out_(out), factors_(groups * PANEL, Factors{0.0f, 0.0f}) {
    std::memset(out, 0, panel_bytes(U4, groups));
}

void FourBitPanel::set_quants(std::size_t group, std::size_t feature, const std::uint8_t (&quants)[GROUP]) {
    std::uint8_t* record = out_ + record_place(U4, group, groups_).record + feature % 16 * 4;
    for (std::size_t i = 0; i < GROUP; ++i) {
        std::uint8_t& byte = record[i / 4 * 64 + i % 4];
        byte = static_cast<std::uint8_t>(byte | quants[i] << (feature < 16 ? 0 : 4));
    }
}

void FourBitPanel::set_factors(std::size_t group, std::size_t feature, float scale, float minimum) {
    factors_[group * PANEL + feature] = {scale, minimum};
}

void FourBitPanel::take_record(std::size_t group, const std::uint8_t* record) {
    std::memcpy(out_ + record_place(U4, group, groups_).record, record, quant_bytes(U4));
    std::uint16_t halves[2][PANEL];
    std::memcpy(halves, record + quant_bytes(U4), sizeof halves);
    for (std::size_t feature = 0; feature < PANEL; ++feature)
        set_factors(group, feature, half_to_float(halves[0][feature]), half_to_float(halves[1][feature]));
}

void FourBitPanel::finish_chunk(std::size_t first, std::size_t end, std::size_t feature) {
    float largest = 0.0f, poison = 0.0f;
    for (std::size_t g = first; g < end; ++g) {
        const Factors& f = factors_[g * PANEL + feature];
        largest = std::max({largest, std::fabs(f.minimum), std::fabs(f.minimum + 15.0f * f.scale)});
        poison += 0.0f * f.minimum + 0.0f * f.scale;
    }
    const float unit = unit_of(largest, poison);
    std::memcpy(out_ + record_place(U4, first, groups_).units + feature * 4, &unit, 4);
    if (!(unit > 0.0f)) return;
    for (std::size_t g = first; g < end; ++g) {
        const Factors& f = factors_[g * PANEL + feature];
        const double step = std::nearbyint(double(f.scale) / double(unit));
        const std::int16_t pair[2] = {whole(step), whole((double(f.minimum) + 8.0 * double(f.scale)) / double(unit))};
        std::memcpy(out_ + record_place(U4, g, groups_).record + quant_bytes(U4) + feature * 4, pair, 4);
    }
}

void FourBitPanel::finish() {
    const std::size_t size = chunk_size(groups_);
    for (std::size_t first = 0; first < groups_; first += size)
        for (std::size_t feature = 0; feature < PANEL; ++feature)
            finish_chunk(first, std::min(first + size, groups_), feature);
}

namespace {

// A feature's group: at most 127 steps, of so many units each.
void pack_group(const float* values, float unit, std::size_t feature, std::uint8_t* record) {
    float largest = 0.0f;
    for (int i = 0; i < GROUP; ++i) largest = std::max(largest, std::fabs(values[i]));
    // A rounded quotient may be a little more than the 128 that it is at most.
    const double steps = std::min(std::ceil(double(largest) / (127.0 * double(unit))), 128.0);
    const std::int16_t step = whole(steps);
    std::memcpy(record + quant_bytes(U8) + feature * 2, &step, 2);
    const double factor = step ? 1.0 / (steps * double(unit)) : 0.0;
    for (std::size_t i = 0; i < GROUP; ++i) {
        const long quant = std::clamp(std::lrint(double(values[i]) * factor), -127L, 127L);
        record[i / 4 * 128 + feature * 4 + i % 4] = static_cast<std::uint8_t>(quant + 128);
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
                pack_group(values + g * GROUP, unit, feature, out + record_place(U8, g, groups).record);
        }
    }
}

}  // namespace octavo
