// The chunks of quantised weights and of what they are multiplied by, as kernels.hpp describes them.
#pragma once
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

template <WeightKind KIND>
struct Format {
    static constexpr int quant_bytes = KIND == U8 ? 1024 : 512;
    static constexpr int record_bytes = quant_bytes + PANEL * (KIND == U8 ? 2 : 4);
};
constexpr int UNIT_BYTES = PANEL * 4;

// Where the groups of a chunk begin, and how many there are.
struct ChunkGroups {
    int first, count;
};

INLINE ChunkGroups groups_of(int chunk, int groups) {
    const int size = chunk_groups(groups), first = chunk * size;
    return {first, groups - first < size ? groups - first : size};
}

INLINE int count_chunks(int groups) { return divide_up(groups, chunk_groups(groups)); }

template <WeightKind KIND>
INLINE int64_t panel_bytes_of(int groups) {
    return static_cast<int64_t>(groups) * Format<KIND>::record_bytes + count_chunks(groups) * UNIT_BYTES;
}

// A chunk of a panel.
struct WeightChunk {
    const float* units;      // [32]
    const uint8_t* records;  // of its groups
};

template <WeightKind KIND>
INLINE WeightChunk chunk_of(const uint8_t* panel, int chunk, int first_group) {
    const uint8_t* at = panel + static_cast<int64_t>(first_group) * Format<KIND>::record_bytes + chunk * UNIT_BYTES;
    return {reinterpret_cast<const float*>(at), at + UNIT_BYTES};
}

// sums += unit * scale * (low + 128 * high) for 16 features of a row
INLINE F add_chunk(F sum, F units, float scale, I low, I high) {
    return fma(mul(units, set1(scale)), fma(set1(128.0f), to_float(high), to_float(low)), sum);
}

}  // namespace
}  // namespace octavo::OCTAVO_VARIANT
