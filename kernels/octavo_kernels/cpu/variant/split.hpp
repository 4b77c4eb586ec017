// The chunks of quantised weights and of what they are multiplied by, as kernels.hpp describes them.
#pragma once
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int GROUP_QUADS = GROUP / 4, QUAD_BYTES = PANEL * 4;  // bytes of four input features of a panel
constexpr int MOST_CHUNK_BYTES = MOST_CHUNK_GROUPS * GROUP * PANEL;

// Where the groups of a chunk begin, and how many there are.
struct ChunkGroups {
    int first, count;
};

INLINE ChunkGroups groups_of(int chunk, int groups) {
    const int size = chunk_groups(groups), first = chunk * size;
    return {first, groups - first < size ? groups - first : size};
}

INLINE int count_chunks(int groups) { return divide_up(groups, chunk_groups(groups)); }

INLINE int64_t panel_bytes_of(WeightKind kind, int groups) {
    return static_cast<int64_t>(groups) * record_bytes(kind) + count_chunks(groups) * UNIT_BYTES;
}

// A chunk of a panel.
struct WeightChunk {
    const float* units;      // [32]
    const uint8_t* records;  // of its groups
};

INLINE WeightChunk chunk_of(WeightKind kind, const uint8_t* panel, int chunk, int first_group) {
    const uint8_t* at = panel + static_cast<int64_t>(first_group) * record_bytes(kind) + chunk * UNIT_BYTES;
    return {reinterpret_cast<const float*>(at), at + UNIT_BYTES};
}

// Of a record of U4 the bytes of four output features: a lane each, of input features 0..15 and 16..31.
struct FourFeatures {
    I first, second;

    INLINE FourFeatures of(const uint8_t* record, int set) { return looked_up(levels_of(record, set), record, set); }

    // As dot4_less_128 takes them.
    INLINE FourFeatures less_128_of(const uint8_t* record, int set) {
        return looked_up(less_128(levels_of(record, set)), record, set);
    }

    INLINE I levels_of(const uint8_t* record, int set) {
        const uint8_t* steps = record + NIBBLE_BYTES;
        return level_bytes(steps + set * 4, steps + PANEL + set * 8);
    }

    INLINE FourFeatures looked_up(I levels, const uint8_t* record, int set) {
        const I both = load_int(record + set * 64);
        return {look_up(levels, low_nibbles(both)), look_up(levels, high_nibbles(both))};
    }
};

// Lanes of four numbers, of output features i, i + 4, i + 8, i + 12 each: the same numbers of 16 features, in order.
INLINE void transpose(I a, I b, I c, I d, I (&out)[4]) {
    const I first = zip_low(a, b), second = zip_low(c, d), third = zip_high(a, b), fourth = zip_high(c, d);
    out[0] = join_low(first, second);
    out[1] = join_high(first, second);
    out[2] = join_low(third, fourth);
    out[3] = join_high(third, fourth);
}

// The records of U4 as those of U8.
INLINE void widen(const uint8_t* records, int groups, uint8_t* out) {
    for (int g = 0; g < groups; ++g, records += record_bytes(U4), out += record_bytes(U8)) {
        UNROLLED(half, 2) {
            FourFeatures features[4];
            UNROLLED(i, 4) features[i] = FourFeatures::of(records, half * 4 + i);
            I quads[2][4];
            transpose(features[0].first, features[1].first, features[2].first, features[3].first, quads[0]);
            transpose(features[0].second, features[1].second, features[2].second, features[3].second, quads[1]);
            UNROLLED(quad, GROUP_QUADS) store_int(out + quad * QUAD_BYTES + half * 64, quads[quad / 4][quad % 4]);
        }
    }
}

// sums + unit * scale * (low + 128 * high) for 16 features of a row
INLINE F add_chunk(F sum, F units, float scale, I low, I high) {
    return fma(mul(units, set1(scale)), fma(set1(128.0f), to_float(high), to_float(low)), sum);
}

}  // namespace
}  // namespace octavo::OCTAVO_VARIANT
