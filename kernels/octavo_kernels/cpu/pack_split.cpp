#include "pack_split.hpp"

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

}  // namespace

std::size_t split_panel_bytes(std::size_t groups) {
    const std::size_t size = chunk_size(groups);
    return groups * SPLIT_RECORD_BYTES + (groups + size - 1) / size * UNIT_BYTES;
}

SplitPlace split_place(std::size_t group, std::size_t groups) {
    const std::size_t size = chunk_size(groups), chunk = group / size;
    const std::size_t units = chunk * (size * SPLIT_RECORD_BYTES + UNIT_BYTES);
    return {units, units + UNIT_BYTES + group % size * SPLIT_RECORD_BYTES};
}

SplitPanel::SplitPanel(std::size_t groups, std::uint8_t* out)
    : groups_(groups), out_(out), factors_(groups * PANEL, Factors{0.0f, 0.0f}) {
    std::memset(out, 0, split_panel_bytes(groups));
}

void SplitPanel::set_quants(std::size_t group, std::size_t feature, const std::uint8_t (&quants)[GROUP]) {
    std::uint8_t* record = out_ + split_place(group, groups_).record + feature % 16 * 4;
    for (std::size_t i = 0; i < GROUP; ++i) {
        std::uint8_t& byte = record[i / 4 * 64 + i % 4];
        byte = static_cast<std::uint8_t>(byte | quants[i] << (feature < 16 ? 0 : 4));
    }
}

void SplitPanel::set_factors(std::size_t group, std::size_t feature, float scale, float minimum) {
    factors_[group * PANEL + feature] = {scale, minimum};
}

void SplitPanel::take_record(std::size_t group, const std::uint8_t* record) {
    std::memcpy(out_ + split_place(group, groups_).record, record, SPLIT_QUANT_BYTES);
    std::uint16_t halves[2][PANEL];
    std::memcpy(halves, record + SPLIT_QUANT_BYTES, sizeof halves);
    for (std::size_t feature = 0; feature < PANEL; ++feature)
        set_factors(group, feature, half_to_float(halves[0][feature]), half_to_float(halves[1][feature]));
}

void SplitPanel::finish_chunk(std::size_t first, std::size_t end, std::size_t feature) {
    float largest = 0.0f, sum = 0.0f;
    for (std::size_t g = first; g < end; ++g) {
        const Factors& f = factors_[g * PANEL + feature];
        largest = std::max({largest, std::fabs(f.minimum), std::fabs(f.minimum + 15.0f * f.scale)});
        sum += std::fabs(f.minimum) + std::fabs(f.scale);
    }
    float unit = largest / static_cast<float>(MOST_UNITS);
    if (!std::isfinite(sum)) unit = std::numeric_limits<float>::quiet_NaN();
    if (unit < FLT_MIN) unit = 0.0f;
    std::memcpy(out_ + split_place(first, groups_).units + feature * 4, &unit, 4);
    if (!(unit > 0.0f)) return;
    for (std::size_t g = first; g < end; ++g) {
        const Factors& f = factors_[g * PANEL + feature];
        const double step = std::nearbyint(double(f.scale) / double(unit));
        const std::int16_t pair[2] = {whole(step), whole((double(f.minimum) + 8.0 * double(f.scale)) / double(unit))};
        std::memcpy(out_ + split_place(g, groups_).record + SPLIT_QUANT_BYTES + feature * 4, pair, 4);
    }
}

void SplitPanel::finish() {
    const std::size_t size = chunk_size(groups_);
    for (std::size_t first = 0; first < groups_; first += size)
        for (std::size_t feature = 0; feature < PANEL; ++feature)
            finish_chunk(first, std::min(first + size, groups_), feature);
}

}  // namespace octavo
