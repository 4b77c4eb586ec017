// Products of quantised weights and activations with the tile registers of AMX. A weight is unpacked to an integer of
// 15 bits, as two of 8: 128 * upper + lower. Sums stay in tiles from the first feature of a chunk to the last.
#include "amx.hpp"
#include "split.hpp"

#if defined(__AMX_TILE__)
namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int DEPTH = 64;  // features of a tile: two groups
constexpr int MOST_TILES = MOST_CHUNK_GROUPS / 2;
constexpr int TILE_ROWS = 16, MOST_ROWS = 2 * TILE_ROWS;  // two tiles below each other

// 64 features of 16 output features, ready for tiles.
struct StagedTile {
    int8_t lower[DEPTH / 4][16][4];
    int8_t upper[DEPTH / 4][16][4];
};

// A chunk of a panel: its first 16 output features, then the others.
struct alignas(64) StagedChunk {
    StagedTile tiles[2][MOST_TILES];
};

// Integers of 15 bits, those of even features and those of odd ones: w + 64.
struct Pairs {
    __m512i even, odd;
};

INLINE __m512i interleave(__m512i even, __m512i odd) {  // bytes of even from `even`, of odd from `odd`
    return _mm512_ternarylogic_epi32(even, odd, _mm512_set1_epi16(0x00ff), 0xe4);
}

// step * quant + base for four features of 16 output features
INLINE Pairs weigh(__m512i even, __m512i odd, __m512i step, __m512i base) {
    return {_mm512_add_epi16(_mm512_mullo_epi16(even, step), base),
            _mm512_add_epi16(_mm512_mullo_epi16(odd, step), base)};
}

INLINE void store_halves(const Pairs& w, int8_t* lower, int8_t* upper) {
    const __m512i seven = interleave(w.even, _mm512_slli_epi16(w.odd, 8));
    _mm512_store_si512(lower, _mm512_sub_epi8(_mm512_and_si512(seven, _mm512_set1_epi8(127)), _mm512_set1_epi8(64)));
    _mm512_store_si512(upper, interleave(_mm512_srli_epi16(w.even, 7), _mm512_slli_epi16(w.odd, 1)));
}

// The steps of 16 output features, twice each, and what a quant of 0 means, plus 64.
struct Steps {
    __m512i step, base;
};

template <WeightKind KIND>
INLINE Steps steps_of(const uint8_t* record, int half) {
    const uint8_t* at = record + Format<KIND>::quant_bytes;
    const __m512i plus = _mm512_set1_epi16(64);
    if constexpr (KIND == U8) {
        const __m512i one = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + half * 32)));
        const __m512i step = _mm512_or_si512(one, _mm512_slli_epi32(one, 16));
        return {step, _mm512_sub_epi16(plus, _mm512_slli_epi16(step, 7))};
    }
    const __m512i both = _mm512_loadu_si512(at + half * 64), upper = _mm512_srli_epi32(both, 16);
    const __m512i low = _mm512_and_si512(both, _mm512_set1_epi32(0xffff));
    const __m512i step = _mm512_or_si512(low, _mm512_slli_epi32(both, 16));
    const __m512i middle = _mm512_or_si512(upper, _mm512_slli_epi32(upper, 16));
    return {step, _mm512_add_epi16(_mm512_sub_epi16(middle, _mm512_slli_epi16(step, 3)), plus)};
}

INLINE void stage_bytes(const uint8_t* quants, const Steps& steps, int8_t* lower, int8_t* upper) {
    const __m512i q = _mm512_loadu_si512(quants);
    const Pairs weights =
        weigh(_mm512_and_si512(q, _mm512_set1_epi16(255)), _mm512_srli_epi16(q, 8), steps.step, steps.base);
    store_halves(weights, lower, upper);
}

template <WeightKind KIND>
INLINE void stage_group(const uint8_t* record, int half_tile, StagedTile& left, StagedTile& right) {
    const Steps first = steps_of<KIND>(record, 0), second = steps_of<KIND>(record, 1);
    const __m512i nibble = _mm512_set1_epi16(15);
    UNROLLED(step, GROUP / 4) {
        const int row = half_tile * (GROUP / 4) + step;
        if constexpr (KIND == U8) {
            stage_bytes(record + step * 128, first, left.lower[row][0], left.upper[row][0]);
            stage_bytes(record + step * 128 + 64, second, right.lower[row][0], right.upper[row][0]);
        } else {
            const __m512i q = _mm512_loadu_si512(record + step * 64), q8 = _mm512_srli_epi16(q, 8);
            store_halves(weigh(_mm512_and_si512(q, nibble), _mm512_and_si512(q8, nibble), first.step, first.base),
                         left.lower[row][0], left.upper[row][0]);
            store_halves(weigh(_mm512_and_si512(_mm512_srli_epi16(q, 4), nibble), _mm512_srli_epi16(q, 12), second.step,
                               second.base),
                         right.lower[row][0], right.upper[row][0]);
        }
    }
}

template <WeightKind KIND>
INLINE void stage(const uint8_t* records, int groups, StagedChunk& staged) {
    for (int g = 0; g < groups; ++g) {
        stage_group<KIND>(records + g * Format<KIND>::record_bytes, g % 2, staged.tiles[0][g / 2],
                          staged.tiles[1][g / 2]);
    }
    if (groups % 2 == 0) return;
    for (StagedTile(&half)[MOST_TILES] : staged.tiles) {
        memset(half[groups / 2].lower[GROUP / 4], 0, sizeof half[0].lower / 2);
        memset(half[groups / 2].upper[GROUP / 4], 0, sizeof half[0].upper / 2);
    }
}

// Registers 0, 1: the upper rows times lower and upper; 2, 3: the lower rows; 4, 5: rows; 6, 7: weights.
INLINE TileShapes split_shapes(int rows) {
    TileShapes shapes;
    for (int tile = 0; tile < 6; ++tile) shapes.set(tile, rows, 64);
    for (int tile = 6; tile < 8; ++tile) shapes.set(tile, DEPTH / 4, 64);
    return shapes;
}

// Integers of rows times 16 output features, as tiles leave them.
struct alignas(64) Dots {
    int32_t lower[MOST_ROWS][16];
    int32_t upper[MOST_ROWS][16];

    INLINE I of(const Dots& dots, int row) {
        return add_int(load_int(dots.lower[row]), shift_left(load_int(dots.upper[row]), 7));
    }
};

// dots = rows times the tiles whose bits are set; with TWO, the second tile of rows begins at row `second`.
template <bool TWO>
INLINE void multiply_tiles(const StagedTile* tiles, uint32_t bits, const int8_t* rows, int64_t stride, int second,
                           Dots& dots) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (TWO) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (; bits; bits &= bits - 1) {
        const int t = __builtin_ctz(bits);
        _tile_loadd(4, rows + t * DEPTH, stride);
        _tile_loadd(6, tiles[t].lower, 64);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, tiles[t].upper, 64);
        _tile_dpbssd(1, 4, 7);
        if constexpr (TWO) {
            _tile_loadd(5, rows + second * stride + t * DEPTH, stride);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        }
    }
    _tile_stored(0, dots.lower, 64);
    _tile_stored(1, dots.upper, 64);
    if constexpr (TWO) {
        _tile_stored(2, dots.lower[second], 64);
        _tile_stored(3, dots.upper[second], 64);
    }
    written();
}

// A block's rows as passes of at most 32 rows. All have as many; the last one may begin with rows of the one before it.
struct Passes {
    int all, count, rows;

    INLINE Passes of(int all) {
        const int count = divide_up(all, MOST_ROWS);
        return {all, count, divide_up(all, count)};
    }
    INLINE int tile_rows(const Passes& p) { return p.rows > TILE_ROWS ? (p.rows + 1) / 2 : p.rows; }
    INLINE int begin(const Passes& p, int pass) { return pass + 1 < p.count ? pass * p.rows : p.all - p.rows; }
    INLINE int repeated(const Passes& p, int pass) { return pass * p.rows - begin(p, pass); }
};

// What becomes of the sums of 16 output features: kept for the next chunk or half of the panel, or finished. SILU and
// PLAIN finish whole panels without a bias, ANY all others.
enum Finish { KEEP, SILU, PLAIN, ANY };

INLINE Finish finish_of(const Gemm& gemm, int panel, int half) {
    const Epilogue& e = gemm.epilogue;
    const bool whole = (panel + 1) * PANEL <= gemm.n && e.bias == nullptr;
    if (whole && e.gate == NO_GATE) return PLAIN;
    if (half == 0) return KEEP;
    return whole && e.gate == GATE_SILU && e.residual == nullptr ? SILU : ANY;
}

// One pass times 16 output features of a chunk.
struct Piece {
    const StagedTile* tiles;
    uint32_t tile_bits;
    const float* units;  // [16]
    const int8_t *low, *high;
    int64_t stride;
    const SplitChunk* about;  // of the first row
    int chunks, rows, second;
    float* sums;  // [rows][32], of which 16
    bool first;   // of the rows' chunks
    Finish finish;
    int row, skipped;  // of the output; how many rows another pass finishes
    int panel, half;
};

// Bit t: groups 2 t or 2 t + 1 have a high part in one of the rows.
INLINE uint32_t high_tiles(const Piece& piece) {
    uint32_t groups = 0, tiles = 0;
    for (int r = 0; r < piece.rows; ++r) groups |= piece.about[r * piece.chunks].high;
    for (uint32_t bits = piece.tile_bits, t = 0; bits; bits >>= 1, ++t) tiles |= (groups >> (2 * t) & 3 ? 1u : 0u) << t;
    return tiles;
}

template <bool HIGH, Finish FINISH>
INLINE void add_rows(const Gemm& gemm, const Piece& piece, const Dots& low, const Dots& high) {
    const Epilogue& e = gemm.epilogue;
    const F units = load(piece.units);
    const int column = FINISH == SILU ? piece.panel * (PANEL / 2) : piece.panel * PANEL + piece.half * 16;
    float* sum = piece.sums;
    float* out = e.out + piece.row * e.out_stride + column;
    const float* residual =
        FINISH == PLAIN && e.residual ? e.residual + piece.row * e.residual_stride + column : nullptr;
    for (int r = 0; r < piece.rows; ++r, sum += PANEL, out += e.out_stride) {
        const F before = piece.first ? zero() : load(sum);
        const I upper = HIGH ? Dots::of(high, r) : zero_int();
        F value = add_chunk(before, units, piece.about[r * piece.chunks].scale, Dots::of(low, r), upper);
        if constexpr (FINISH == SILU) {
            if (r >= piece.skipped) store(out, mul(silu(load(sum - 16)), value));
        } else if constexpr (FINISH == PLAIN) {
            if (residual) value = add(value, load(residual + r * e.residual_stride));
            if (r >= piece.skipped) store(out, value);
        } else {
            store(sum, value);
        }
    }
    if constexpr (FINISH == ANY) {
        const float* sums = piece.sums - 16 + piece.skipped * PANEL;
        finish_tile(gemm, sums, piece.row + piece.skipped, piece.rows - piece.skipped, piece.panel);
    }
}

template <bool HIGH>
INLINE void add_rows(const Gemm& gemm, const Piece& piece, const Dots& low, const Dots& high) {
    switch (piece.finish) {
        case KEEP: return add_rows<HIGH, KEEP>(gemm, piece, low, high);
        case SILU: return add_rows<HIGH, SILU>(gemm, piece, low, high);
        case PLAIN: return add_rows<HIGH, PLAIN>(gemm, piece, low, high);
        case ANY: return add_rows<HIGH, ANY>(gemm, piece, low, high);
    }
}

template <bool TWO>
void multiply_piece(const Gemm& gemm, const Piece& piece) {
    Dots low, high;
    multiply_tiles<TWO>(piece.tiles, piece.tile_bits, piece.low, piece.stride, piece.second, low);
    const uint32_t bits = high_tiles(piece);
    if (bits == 0) return add_rows<false>(gemm, piece, low, high);
    multiply_tiles<TWO>(piece.tiles, bits, piece.high, piece.stride, piece.second, high);
    add_rows<true>(gemm, piece, low, high);
}

constexpr int TOGETHER = 4;  // passes while 16 output features stay in the first-level cache

// A chunk of a panel, ready to be multiplied.
struct PanelChunk {
    const StagedChunk& staged;
    const float* units;
    int panel, index, count;
    float* sums;         // [passes][rows][32]
    Prefetch& prefetch;  // of the weights that come next
};

// Some passes of a block by a chunk.
void multiply_passes(const Gemm& gemm, const Block& block, const Passes& passes, int first, int end,
                     const PanelChunk& chunk) {
    const SplitRows& x = gemm.split;
    const ChunkGroups here = groups_of(chunk.index, gemm.k / GROUP);
    const bool last = chunk.index + 1 == chunk.count;
    for (int half = 0; half < 2; ++half) {
        for (int pass = first; pass < end; ++pass) {
            const int row = block.row + Passes::begin(passes, pass);
            const int64_t at = row * x.stride + here.first * GROUP;
            const Piece piece{chunk.staged.tiles[half],
                              static_cast<uint32_t>((uint64_t{1} << divide_up(here.count, 2)) - 1),
                              chunk.units + half * 16,
                              x.low + at,
                              x.high + at,
                              x.stride,
                              x.chunks + row * chunk.count + chunk.index,
                              chunk.count,
                              passes.rows,
                              passes.rows - Passes::tile_rows(passes),
                              chunk.sums + pass * passes.rows * PANEL + half * 16,
                              chunk.index == 0,
                              last ? finish_of(gemm, chunk.panel, half) : KEEP,
                              row,
                              Passes::repeated(passes, pass),
                              chunk.panel,
                              half};
            passes.rows > TILE_ROWS ? multiply_piece<true>(gemm, piece) : multiply_piece<false>(gemm, piece);
            Prefetch::some(chunk.prefetch);
        }
    }
}

// The panel whose weights will be wanted next, to be fetched while this one is multiplied, a few lines in each piece.
INLINE Prefetch next_panel(const Gemm& gemm, const Block& block, int panel, int64_t panel_bytes, int pieces) {
    const int next = panel + 1 < block.end_panel ? panel + 1 : block.next_panel;
    const char* at = static_cast<const char*>(gemm.weights) + (next < 0 ? 0 : next) * panel_bytes;
    return {at, next < 0 ? at : at + panel_bytes, divide_up(static_cast<int>(panel_bytes / 64), pieces)};
}

template <WeightKind KIND>
void run(const Gemm& gemm, const Block& block) {
    const int groups = gemm.k / GROUP, chunks = count_chunks(groups);
    const int64_t panel_bytes = panel_bytes_of<KIND>(groups);
    const Passes passes = Passes::of(block.end_row - block.row);
    alignas(64) float sums[(MOST_BLOCK_ROWS + MOST_ROWS) * PANEL];
    StagedChunk staged;
    const Tiles shapes(split_shapes(Passes::tile_rows(passes)));
    for (int panel = block.panel; panel < block.end_panel; ++panel) {
        const uint8_t* weights = static_cast<const uint8_t*>(gemm.weights) + panel * panel_bytes;
        Prefetch prefetch = next_panel(gemm, block, panel, panel_bytes, 2 * passes.count * chunks);
        for (int c = 0; c < chunks; ++c) {
            const ChunkGroups here = groups_of(c, groups);
            const WeightChunk weight = chunk_of<KIND>(weights, c, here.first);
            stage<KIND>(weight.records, here.count, staged);
            written();
            const PanelChunk chunk{staged, weight.units, panel, c, chunks, sums, prefetch};
            for (int first = 0; first < passes.count; first += TOGETHER) {
                const int end = first + TOGETHER < passes.count ? first + TOGETHER : passes.count;
                multiply_passes(gemm, block, passes, first, end, chunk);
            }
        }
    }
}

}  // namespace

void multiply_quantised_amx(const Gemm& gemm, const Block& block) {
    gemm.kind == U8 ? run<U8>(gemm, block) : run<U4>(gemm, block);
}

}  // namespace octavo::OCTAVO_VARIANT
#endif
