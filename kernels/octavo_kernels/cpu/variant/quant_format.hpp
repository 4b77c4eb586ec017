// The records of weights of 8 bits, as kernels.hpp describes them.
#pragma once
#include "simd.hpp"

namespace octavo::OCTAVO_VARIANT {
namespace {

// Integers become floats for nothing where scales are float16: a sum begins with the bits of MAGIC = 1.5 * 2^23, as
// float it then is MAGIC + sum, and fma(scale, MAGIC + sum, -scale * MAGIC) rounds scale * sum once, since scale *
// MAGIC is exact in 13 bits. Sums stay below 2^22. (A scale that is infinite makes NaN of what it scales.)
constexpr int32_t MAGIC_BITS = 0x4b400000;
constexpr float MAGIC = 12582912.0f;

template <WeightKind KIND>
struct Format {
    static constexpr bool minima = KIND == U8_MIN;
    static constexpr bool wide = KIND == U8_FINE;
    static constexpr int parts = KIND == U8_FINE ? 2 : 1;  // of a group, with a scale each
    static constexpr int quant_bytes = 1024;
    static constexpr int plane_bytes = wide ? 128 : 64;  // 32 scales, or minima
    static constexpr int record_bytes = quant_bytes + (parts + minima) * plane_bytes;

    INLINE F load_plane(const uint8_t* record, int plane, int column) {
        const uint8_t* at = record + quant_bytes + plane * plane_bytes;
        if constexpr (wide) return load(reinterpret_cast<const float*>(at) + column);
        return load_half(reinterpret_cast<const uint16_t*>(at) + column);
    }
};

}  // namespace
}  // namespace octavo::OCTAVO_VARIANT
