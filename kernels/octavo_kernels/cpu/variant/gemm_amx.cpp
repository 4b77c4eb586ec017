// Products with the tile registers of AMX (Intel, Sapphire Rapids and later).
//
// Quantised: a group of 32 is one tile product, whose int32 sums are exact; they go through memory into vector
// registers, where they are scaled and added as in every other variant. While the vector units work on one group, the
// tile unit multiplies the next. Next to tile instructions only one of the two units for 512-bit floats works (measured
// on Sapphire Rapids' successors), so floats are what is scarce: integers are made floats by an integer addition.
#include "amx.hpp"
#include "quant_format.hpp"

#if defined(__AMX_TILE__)
namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int QUANT_TILE_ROWS = 12;  // 2 * 12 sums leave vector registers for the rest
constexpr int STAGED_GROUPS = 12;    // of a panel at most, so that they stay in the first-level cache

// PART input features of a panel that share a scale, ready for tiles: quants less their zero, factors as float32.
template <int PART>
struct Staged {
    int8_t quants[PART / 4][PANEL][4];
    float scale[PANEL];
    float less[PANEL];  // -scale * MAGIC
    float minimum[PANEL];
};

template <WeightKind KIND>
INLINE void stage(const uint8_t* record, __m512i zeros, Staged<GROUP / Format<KIND>::parts>* staged) {
    using Of = Format<KIND>;
    constexpr int STEPS = 8 / Of::parts;
    UNROLLED(part, Of::parts) {
        UNROLLED(step, STEPS) {
            const uint8_t* at = record + (part * STEPS + step) * 128;
            _mm512_store_si512(staged[part].quants[step][0], _mm512_sub_epi8(load_int(at), zeros));
            _mm512_store_si512(staged[part].quants[step][16], _mm512_sub_epi8(load_int(at + 64), zeros));
        }
        for (int column = 0; column < PANEL; column += 16) {
            const F scale = Of::load_plane(record, part, column);
            store(staged[part].scale + column, scale);
            if constexpr (!Of::wide) store(staged[part].less + column, mul(scale, set1(-MAGIC)));
            if constexpr (Of::minima) store(staged[part].minimum + column, Of::load_plane(record, 1, column));
        }
    }
}

// What a tile of rows is multiplied with.
struct Rows {
    const int8_t* values;
    int64_t stride;
    const char* groups;  // QuantGroup of the first row
    int64_t groups_stride;
};

// Registers 0 to 3 are sums, in pairs that take turns: one is multiplied while the other is stored. 4: rows; 6, 7:
// weights.
INLINE TileShapes quant_shapes(int rows, int part) {
    TileShapes shapes;
    for (int tile = 0; tile < 4; ++tile) shapes.set(tile, rows, 64);
    shapes.set(4, rows, part);
    shapes.set(6, part / 4, 64);
    shapes.set(7, part / 4, 64);
    return shapes;
}

// The pair's sums = those of a part.
template <int PAIR, int PART>
INLINE void multiply_part(const int8_t* x, int64_t stride, const Staged<PART>& staged) {
    _tile_loadd(4, x, stride);
    _tile_loadd(6, staged.quants[0][0], PANEL * 4);
    _tile_loadd(7, staged.quants[0][16], PANEL * 4);
    if constexpr (PAIR == 0) {
        _tile_zero(0);
        _tile_dpbssd(0, 4, 6);
        _tile_zero(1);
        _tile_dpbssd(1, 4, 7);
    } else {
        _tile_zero(2);
        _tile_dpbssd(2, 4, 6);
        _tile_zero(3);
        _tile_dpbssd(3, 4, 7);
    }
}

template <int PAIR>
INLINE void store_dots(int32_t* dots) {
    if constexpr (PAIR == 0) {
        _tile_stored(0, dots, PANEL * 4);
        _tile_stored(1, dots + 16, PANEL * 4);
    } else {
        _tile_stored(2, dots, PANEL * 4);
        _tile_stored(3, dots + 16, PANEL * 4);
    }
}

INLINE float number_at(const char* at) {
    float value;
    memcpy(&value, at, 4);
    return value;
}

INLINE void next_group(const char* (&groups)[4]) {
    UNROLLED(i, 4) groups[i] += sizeof(QuantGroup);
}

template <bool WIDE>
INLINE F dots_as_float(const int32_t* dots) {
    if constexpr (WIDE) return to_float(load_int(dots));
    return as_float(add_int(load_int(dots), set1_int(MAGIC_BITS)));
}

template <bool WIDE, bool MINIMA, int PART, int ROWS>
INLINE void add_part(F (&sum)[ROWS][2], const int32_t* dots, const Staged<PART>& staged, const char* const (&groups)[4],
                     int64_t stride) {
    const F scale0 = load(staged.scale), scale1 = load(staged.scale + 16);
    const F less0 = WIDE ? zero() : load(staged.less), less1 = WIDE ? zero() : load(staged.less + 16);
    UNROLLED(r, ROWS) {
        const F x = set1(number_at(groups[r / 3] + r % 3 * stride));
        const F dot0 = dots_as_float<WIDE>(dots + r * PANEL), dot1 = dots_as_float<WIDE>(dots + r * PANEL + 16);
        sum[r][0] = fma(x, fma(scale0, dot0, less0), sum[r][0]);
        sum[r][1] = fma(x, fma(scale1, dot1, less1), sum[r][1]);
    }
    if constexpr (MINIMA) {
        const F minimum0 = load(staged.minimum), minimum1 = load(staged.minimum + 16);
        UNROLLED(r, ROWS) {
            const F x = set1(number_at(groups[r / 3] + r % 3 * stride + offsetof(QuantGroup, scaled_sum)));
            sum[r][0] = fma(x, minimum0, sum[r][0]);
            sum[r][1] = fma(x, minimum1, sum[r][1]);
        }
    }
}

// sums [ROWS][32] += staged parts times rows. Three things at a time, so that none waits for the one before it: part p
// is multiplied, part p - 1 stored, and part p - 2 added.
template <bool WIDE, bool MINIMA, int PART, int ROWS>
void add_parts(const Rows& rows, const Staged<PART>* staged, int parts, float* sums, Prefetch& prefetch) {
    alignas(64) int32_t dots[2][ROWS * PANEL];
    F sum[ROWS][2];
    const char* groups[4];
    UNROLLED(r, ROWS) sum[r][0] = load(sums + r * PANEL), sum[r][1] = load(sums + r * PANEL + 16);
    UNROLLED(i, 4) groups[i] = rows.groups + i * 3 * rows.groups_stride;
    for (int p = 0; p < parts + 2; p += 2) {
        if (p < parts) multiply_part<0>(rows.values + p * PART, rows.stride, staged[p]);
        if (p > 0) {
            if (p <= parts) store_dots<1>(dots[1]);
            add_part<WIDE, MINIMA, PART>(sum, dots[0], staged[p - 2], groups, rows.groups_stride);
            if (PART == GROUP) next_group(groups);
        }
        Prefetch::some(prefetch);
        if (p + 1 < parts) multiply_part<1>(rows.values + (p + 1) * PART, rows.stride, staged[p + 1]);
        if (p < parts) store_dots<0>(dots[0]);
        if (p > 0 && p <= parts) {
            add_part<WIDE, MINIMA, PART>(sum, dots[1], staged[p - 1], groups, rows.groups_stride);
            next_group(groups);
        }
        Prefetch::some(prefetch);
    }
    UNROLLED(r, ROWS) store(sums + r * PANEL, sum[r][0]), store(sums + r * PANEL + 16, sum[r][1]);
}

template <bool WIDE, bool MINIMA, int PART>
using AddParts = void (*)(const Rows&, const Staged<PART>*, int, float*, Prefetch&);
template <bool WIDE, bool MINIMA, int PART, int... ROWS>
struct AddPartsOf {
    static constexpr AddParts<WIDE, MINIMA, PART> by_rows[] = {add_parts<WIDE, MINIMA, PART, ROWS>...};
};

// Asks for the lines that a tile's results will be written to.
INLINE void prefetch_out(const Gemm& gemm, int row, int rows, int panel) {
    const int width = gemm.epilogue.gate == NO_GATE ? PANEL : PANEL / 2;
    const float* out = gemm.epilogue.out + row * gemm.epilogue.out_stride + panel * width;
    for (int r = 0; r < rows; ++r, out += gemm.epilogue.out_stride) {
        __builtin_prefetch(out, 1);
        if (width == PANEL) __builtin_prefetch(out + 16, 1);
    }
}

// Where tile t of `tiles` begins: all have as many rows, the last two may overlap.
INLINE int tile_row(int t, int tile_rows, int rows) {
    return (t + 1) * tile_rows <= rows ? t * tile_rows : rows - tile_rows;
}

template <WeightKind KIND>
void run(const Gemm& gemm, const Block& block) {
    using Of = Format<KIND>;
    constexpr int PART = GROUP / Of::parts;
    const int rows = block.end_row - block.row, groups = gemm.k / GROUP;
    const int tiles = divide_up(rows, QUANT_TILE_ROWS), tile_rows = divide_up(rows, tiles);
    const int chunk = divide_up(groups, divide_up(groups, STAGED_GROUPS));
    const AddParts<Of::wide, Of::minima, PART> add_some =
        AddPartsOf<Of::wide, Of::minima, PART, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>::by_rows[tile_rows - 1];
    const int8_t* values = static_cast<const int8_t*>(gemm.input) + static_cast<int64_t>(block.row) * gemm.k;
    const QuantGroup* about = gemm.groups + static_cast<int64_t>(block.row) * groups;
    const int64_t panel_bytes = static_cast<int64_t>(groups) * Of::record_bytes;
    const uint8_t* weights = static_cast<const uint8_t*>(gemm.weights);
    const __m512i zeros = _mm512_set1_epi8(static_cast<char>(Of::minima ? 0 : 128 >> gemm.zero_shift));
    alignas(64) Staged<PART> staged[STAGED_GROUPS * Of::parts];
    alignas(64) float sums[MOST_BLOCK_ROWS * PANEL];
    const Tiles shapes(quant_shapes(tile_rows, PART));
    for (int panel = block.panel; panel < block.end_panel; ++panel) {
        const uint8_t* records = weights + panel * panel_bytes;
        const int next = panel + 1 < block.end_panel ? panel + 1 : block.next_panel;
        const char* first = reinterpret_cast<const char*>(weights + (next < 0 ? 0 : next) * panel_bytes);
        Prefetch prefetch{first, next < 0 ? first : first + panel_bytes,
                          divide_up(Of::record_bytes / 64, tiles * Of::parts)};
        memset(sums, 0, static_cast<size_t>(tiles * tile_rows) * PANEL * 4);
        for (int g = 0; g < groups; g += chunk) {
            const int count = groups - g < chunk ? groups - g : chunk;
            for (int i = 0; i < count; ++i)
                stage<KIND>(records + (g + i) * Of::record_bytes, zeros, staged + i * Of::parts);
            written();
            for (int t = 0; t < tiles; ++t) {
                const int r = tile_row(t, tile_rows, rows);
                if (g == 0) prefetch_out(gemm, block.row + r, tile_rows, panel);
                const Rows here{values + static_cast<int64_t>(r) * gemm.k + g * GROUP, gemm.k,
                                reinterpret_cast<const char*>(about + static_cast<int64_t>(r) * groups + g),
                                static_cast<int64_t>(groups) * static_cast<int64_t>(sizeof(QuantGroup))};
                add_some(here, staged, count * Of::parts, sums + t * tile_rows * PANEL, prefetch);
            }
        }
        // The last tile begins with rows that the one before it has finished.
        const int before = (tiles - 1) * tile_rows, overlap = tiles * tile_rows - rows;
        finish_tile(gemm, sums, block.row, before, panel);
        finish_tile(gemm, sums + (before + overlap) * PANEL, block.row + before, rows - before, panel);
    }
}

constexpr int PAIRS = 16;      // of bfloat16: the depth of a tile
constexpr int BF16_ROWS = 32;  // two tiles below each other

// The rest of the pairs of a panel and of some rows, with zeros behind.
struct Tail {
    alignas(64) uint16_t weights[PAIRS][PANEL][2];
    alignas(64) uint16_t x[BF16_ROWS][PAIRS][2];

    INLINE void fill(Tail& tail, const uint16_t* weights, const uint16_t* x, int64_t stride, int rows, int pairs) {
        memset(&tail, 0, sizeof tail);
        memcpy(tail.weights, weights, static_cast<size_t>(pairs) * sizeof tail.weights[0]);
        for (int r = 0; r < rows; ++r) memcpy(tail.x[r], x + r * stride, static_cast<size_t>(pairs) * 4);
    }
};

// Adds PAIRS pairs. x1: the rows of the second tile.
template <bool TWO>
INLINE void multiply_pairs(const uint16_t* weights, const uint16_t* x0, const uint16_t* x1, int64_t stride) {
    _tile_loadd(6, weights, PANEL * 4);
    _tile_loadd(4, x0, stride * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + PANEL, PANEL * 4);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (TWO) {
        _tile_loadd(5, x1, stride * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

// sums [rows][32] of `rows` rows, in one tile or in two, of which the second begins at row `second`
template <bool TWO>
void multiply_rows(const uint16_t* weights, const uint16_t* x, int64_t stride, int pairs, int rows, int second,
                   float* sums) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (TWO) {
        _tile_zero(2);
        _tile_zero(3);
    }
    const uint16_t* x1 = x + second * stride;
    int p = 0;
    for (; p + PAIRS <= pairs; p += PAIRS)
        multiply_pairs<TWO>(weights + static_cast<int64_t>(p) * PANEL * 2, x + p * 2, x1 + p * 2, stride);
    if (p < pairs) {
        Tail tail;
        Tail::fill(tail, weights + static_cast<int64_t>(p) * PANEL * 2, x + p * 2, stride, rows, pairs - p);
        written();
        multiply_pairs<TWO>(tail.weights[0][0], tail.x[0][0], tail.x[second][0], PAIRS * 2);
    }
    _tile_stored(0, sums, PANEL * 4);
    _tile_stored(1, sums + 16, PANEL * 4);
    if constexpr (TWO) {
        _tile_stored(2, sums + second * PANEL, PANEL * 4);
        _tile_stored(3, sums + second * PANEL + 16, PANEL * 4);
    }
}

INLINE TileShapes bf16_shapes(int rows) {
    TileShapes shapes;
    for (int tile = 0; tile < 6; ++tile) shapes.set(tile, rows, 64);
    for (int tile = 6; tile < 8; ++tile) shapes.set(tile, PAIRS, 64);
    return shapes;
}

}  // namespace

void multiply_quantised_amx(const Gemm& gemm, const Block& block) {
    switch (gemm.kind) {
        case U8: return run<U8>(gemm, block);
        case U8_MIN: return run<U8_MIN>(gemm, block);
        case U8_FINE: return run<U8_FINE>(gemm, block);
        default: return;
    }
}

void multiply_bf16_amx(const Gemm& gemm, const Block& block) {
    const int pairs = (gemm.k + 1) / 2, all = block.end_row - block.row;
    const int64_t stride = 2 * pairs;
    // As many rows each time; the last ones may overlap.
    const int times = divide_up(all, BF16_ROWS), rows = divide_up(all, times);
    const bool two = rows > 16;
    const int tile_rows = two ? (rows + 1) / 2 : rows;
    const uint16_t* x = static_cast<const uint16_t*>(gemm.input) + block.row * stride;
    alignas(64) float sums[BF16_ROWS * PANEL];
    const Tiles shapes(bf16_shapes(tile_rows));
    for (int panel = block.panel; panel < block.end_panel; ++panel) {
        const uint16_t* weights = static_cast<const uint16_t*>(gemm.weights) + panel * stride * PANEL;
        for (int done = 0; done < all; done += rows) {
            const int row = done + rows <= all ? done : all - rows, again = done - row;
            const auto multiply = two ? multiply_rows<true> : multiply_rows<false>;
            multiply(weights, x + row * stride, stride, pairs, rows, rows - tile_rows, sums);
            finish_tile(gemm, sums + again * PANEL, block.row + done, rows - again, panel);
        }
    }
}

}  // namespace octavo::OCTAVO_VARIANT
#endif
