// The tile registers of AMX.
#pragma once
#include "gemm.hpp"

#if defined(__AMX_TILE__)
namespace octavo::OCTAVO_VARIANT {
namespace {

// What ldtilecfg reads.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int tile_rows, int bytes) {
        rows[tile] = static_cast<uint8_t>(tile_rows);
        row_bytes[tile] = static_cast<uint16_t>(bytes);
    }
};

// The compiler does not know that tile instructions read memory.
INLINE void written() { asm volatile("" ::: "memory"); }

// The shapes of the tile registers, as long as this lives.
struct Tiles {
    explicit Tiles(const TileShapes& shapes) {
        asm volatile("" : : "r"(&shapes) : "memory");  // all of it is read
        _tile_loadconfig(&shapes);
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};

// Touches the weights that come next, a few lines at a time.
struct Prefetch {
    const char* at;
    const char* end;
    int lines;  // each time

    INLINE void some(Prefetch& p) {
        for (int i = 0; i < p.lines && p.at < p.end; ++i, p.at += 64) _mm_prefetch(p.at, _MM_HINT_T1);
    }
};

}  // namespace
}  // namespace octavo::OCTAVO_VARIANT
#endif
