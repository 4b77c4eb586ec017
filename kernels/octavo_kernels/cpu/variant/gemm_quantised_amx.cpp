// Products of quantised weights and activations with the tile registers of AMX. Sums stay in tiles from the first
// feature of a chunk to the last.
#include "amx.hpp"
#include "split.hpp"

#if defined(__AMX_TILE__)
namespace octavo::OCTAVO_VARIANT {
namespace {

constexpr int DEPTH = 64, QUADS = DEPTH / 4;  // features of a tile, in fours
constexpr int TILE_ROWS = 16;
static_assert(PASS_ROWS == 2 * TILE_ROWS);  // two tiles below each other
constexpr int MOST_QUADS = MOST_CHUNK_GROUPS * GROUP_QUADS;
constexpr int MOST_PASSES = MOST_BLOCK_ROWS / PASS_ROWS + 1;

// A block's rows as passes of at most 32 rows. All have as many; the last one may begin with rows of the one before it.
struct Passes {
    int all, count, rows;

    INLINE Passes of(int all) {
        const int count = divide_up(all, PASS_ROWS);
        return {all, count, divide_up(all, count)};
    }
    INLINE int tile_rows(const Passes& p) { return p.rows > TILE_ROWS ? (p.rows + 1) / 2 : p.rows; }
    INLINE int begin(const Passes& p, int pass) { return pass + 1 < p.count ? pass * p.rows : p.all - p.rows; }
    INLINE int repeated(const Passes& p, int pass) { return pass * p.rows - begin(p, pass); }
};

// Rows of bytes, so many tiles long.
struct TileRows {
    const int8_t* at;
    int64_t stride;
    int tiles;
};

// The high parts of a pass in a chunk: only the quads in which a row has one.
struct HighPart {
    TileRows rows;
    int count;
    uint8_t quads[MOST_QUADS];
};
static_assert(sizeof(HighPart) <= HIGH_PART_BYTES);

// The 16 * word-th quads and those behind them that have a high part in one of the rows: a bit each.
INLINE uint32_t quads_of(const uint64_t (&bits)[MOST_CHUNK_GROUPS / 8], int word) {
    return static_cast<uint32_t>(bits[word / 4] >> (word % 4 * 16)) & 0xffff;
}

// Gathers the high parts of rows, whose features begin at x, into `to`. What a store writes too far belongs to the next
// row, or behind the last one.
INLINE HighPart gather_high(const int8_t* x, int64_t stride, const SplitChunk* about, int chunks, int rows,
                            int8_t* to) {
    HighPart part;
    uint64_t bits[MOST_CHUNK_GROUPS / 8] = {};
    for (int r = 0; r < rows; ++r)
        UNROLLED(i, MOST_CHUNK_GROUPS / 8) bits[i] |= about[r * chunks].high[i];
    part.count = 0;
    for (int i = 0; i < MOST_CHUNK_GROUPS / 8; ++i)
        for (uint64_t left = bits[i]; left; left &= left - 1)
            part.quads[part.count++] = static_cast<uint8_t>(i * 64 + __builtin_ctzll(left));
    const int tiles = divide_up(part.count, QUADS);
    part.rows = {to, tiles * DEPTH, tiles};
    if (tiles == 0) return part;
    for (int r = 0; r < rows; ++r, x += stride, to += part.rows.stride) {
        int8_t* at = to;
        for (int word = 0; word < MOST_QUADS / QUADS; ++word) {
            const uint32_t quads = quads_of(bits, word);
            if (quads == 0) continue;
            const __m512i all = _mm512_loadu_si512(x + word * DEPTH);
            _mm512_storeu_si512(at, _mm512_maskz_compress_epi32(static_cast<__mmask16>(quads), all));
            at += 4 * __builtin_popcount(quads);
        }
        _mm512_storeu_si512(at, _mm512_setzero_si512());
    }
    return part;
}

// Scratch memory begins with a part for each pass of every block and chunk; a pass's rows lie behind them. Blocks begin
// with multiples of PASS_ROWS.
struct HighParts {
    HighPart* parts;
    int8_t* rows;
    int64_t pass_bytes;
    int chunks;

    INLINE HighParts of(const Gemm& gemm) {
        const int chunks = count_chunks(gemm.k / GROUP), passes = divide_up(gemm.rows, PASS_ROWS);
        const int64_t parts = divide_up(passes * chunks * static_cast<int>(sizeof(HighPart)), 64) * INT64_C(64);
        return {reinterpret_cast<HighPart*>(gemm.scratch), reinterpret_cast<int8_t*>(gemm.scratch) + parts,
                PASS_ROWS * static_cast<int64_t>(gemm.k + chunks * DEPTH), chunks};
    }
    INLINE HighPart& part(const HighParts& all, const Block& block, int pass, int chunk) {
        return all.parts[(block.row / PASS_ROWS + pass) * all.chunks + chunk];
    }
};

// Registers 0, 1: the first tile of rows times 16 output features each; 2, 3: the second one; 4, 5: rows; 6, 7:
// weights.
INLINE TileShapes product_shapes(int rows) {
    TileShapes shapes;
    for (int tile = 0; tile < 6; ++tile) shapes.set(tile, rows, 64);
    for (int tile = 6; tile < 8; ++tile) shapes.set(tile, QUADS, 64);
    return shapes;
}

// Integers of rows times a panel.
struct alignas(64) Dots {
    int32_t rows[PASS_ROWS][PANEL];
};

// dots = rows times weights [quads][32][4]; with TWO, the second tile of rows begins at row `second`.
template <bool TWO>
INLINE void multiply_tiles(const TileRows& rows, const uint8_t* weights, int second, Dots& dots) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (TWO) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int t = 0; t < rows.tiles; ++t, weights += QUADS * QUAD_BYTES) {
        _tile_loadd(4, rows.at + t * DEPTH, rows.stride);
        _tile_loadd(6, weights, QUAD_BYTES);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(7, weights + 64, QUAD_BYTES);
        _tile_dpbsud(1, 4, 7);
        if constexpr (TWO) {
            _tile_loadd(5, rows.at + second * rows.stride + t * DEPTH, rows.stride);
            _tile_dpbsud(2, 5, 6);
            _tile_dpbsud(3, 5, 7);
        }
    }
    _tile_stored(0, dots.rows[0], PANEL * 4);
    _tile_stored(1, dots.rows[0] + 16, PANEL * 4);
    if constexpr (TWO) {
        _tile_stored(2, dots.rows[second], PANEL * 4);
        _tile_stored(3, dots.rows[second] + 16, PANEL * 4);
    }
    written();
}

// What becomes of sums: kept for the next chunk, or finished. SILU and PLAIN finish whole panels without a bias, ANY
// all others.
enum Finish { KEEP, SILU, PLAIN, ANY };

INLINE Finish finish_of(const Gemm& gemm, int panel) {
    const Epilogue& e = gemm.epilogue;
    const bool whole = (panel + 1) * PANEL <= gemm.n && e.bias == nullptr;
    if (whole && e.gate == NO_GATE) return PLAIN;
    return whole && e.gate == GATE_SILU && e.residual == nullptr ? SILU : ANY;
}

// A pass by a chunk of a panel.
struct Piece {
    const SplitChunk* about;  // of the first row
    int chunks, rows;
    float* sums;  // [rows][32]
    bool first;   // of the rows' chunks
    Finish finish;
    int row, skipped;  // of the output; how many rows another pass finishes
    int panel;
};

template <bool HIGH, Finish FINISH>
INLINE void add_rows(const Gemm& gemm, const Piece& piece, const float* units, const TileRows& rows, const Dots& low,
                     const Dots& high) {
    const Epilogue& e = gemm.epilogue;
    const F left_units = load(units), right_units = load(units + 16);
    const int column = FINISH == SILU ? piece.panel * (PANEL / 2) : piece.panel * PANEL;
    for (int r = piece.skipped; r < piece.rows; ++r) {
        const SplitChunk& about = piece.about[r * piece.chunks];
        for (int line = 0; line < rows.tiles; ++line) {
            const int8_t* next = rows.at + (piece.rows + r) * rows.stride + line * DEPTH;
            _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
        }
        const I low_start = set1_int(about.low_start), high_start = set1_int(about.high_start);
        float* sum = piece.sums + r * PANEL;
        F value[2];
        UNROLLED(half, 2) {
            const I low_dot = add_int(load_int(low.rows[r] + half * 16), low_start);
            const I high_dot = HIGH ? add_int(load_int(high.rows[r] + half * 16), high_start) : zero_int();
            const F before = piece.first ? zero() : load(sum + half * 16);
            value[half] = add_chunk(before, half ? right_units : left_units, about.scale, low_dot, high_dot);
        }
        float* out = e.out + (piece.row + r) * e.out_stride + column;
        if constexpr (FINISH == SILU) {
            store(out, mul(silu(value[0]), value[1]));
        } else if constexpr (FINISH == PLAIN) {
            const float* residual = e.residual ? e.residual + (piece.row + r) * e.residual_stride + column : nullptr;
            UNROLLED(half, 2)
                store(out + half * 16, residual ? add(value[half], load(residual + half * 16)) : value[half]);
        } else {
            UNROLLED(half, 2) store(sum + half * 16, value[half]);
        }
    }
    if constexpr (FINISH == ANY) {
        const int first = piece.skipped;
        finish_tile(gemm, piece.sums + first * PANEL, piece.row + first, piece.rows - first, piece.panel);
    }
}

template <bool HIGH>
INLINE void add_rows(const Gemm& gemm, const Piece& piece, const float* units, const TileRows& rows, const Dots& low,
                     const Dots& high) {
    switch (piece.finish) {
        case KEEP: return add_rows<HIGH, KEEP>(gemm, piece, units, rows, low, high);
        case SILU: return add_rows<HIGH, SILU>(gemm, piece, units, rows, low, high);
        case PLAIN: return add_rows<HIGH, PLAIN>(gemm, piece, units, rows, low, high);
        case ANY: return add_rows<HIGH, ANY>(gemm, piece, units, rows, low, high);
    }
}

// Weights of a chunk as bytes [quads][32][4].
struct ChunkBytes {
    const float* units;
    const uint8_t* quads;
};

// The quads that `part` wants; the rest of a tile meets zeros.
INLINE void gather_weights(const uint8_t* weights, const HighPart& part, uint8_t* to) {
    for (int i = 0; i < part.count; ++i, to += QUAD_BYTES) {
        const uint8_t* from = weights + part.quads[i] * QUAD_BYTES;
        store_int(to, load_int(from));
        store_int(to + 64, load_int(from + 64));
    }
}

template <bool TWO>
void multiply_piece(const Gemm& gemm, const Piece& piece, const ChunkBytes& weights, const TileRows& rows,
                    const HighPart& part, int second, uint8_t* gathered) {
    Dots low, high;
    if (part.count == 0) {
        multiply_tiles<TWO>(rows, weights.quads, second, low);
        return add_rows<false>(gemm, piece, weights.units, rows, low, high);
    }
    gather_weights(weights.quads, part, gathered);
    written();
    multiply_tiles<TWO>(rows, weights.quads, second, low);
    multiply_tiles<TWO>(part.rows, gathered, second, high);
    add_rows<true>(gemm, piece, weights.units, rows, low, high);
}

// The panel whose weights will be wanted next, to be fetched while this one is multiplied, a few lines in each piece.
INLINE Prefetch next_panel(const Gemm& gemm, const Block& block, int panel, int64_t panel_bytes, int pieces) {
    const int next = panel + 1 < block.end_panel ? panel + 1 : block.next_panel;
    const char* at = static_cast<const char*>(gemm.weights) + (next < 0 ? 0 : next) * panel_bytes;
    return {at, next < 0 ? at : at + panel_bytes, divide_up(static_cast<int>(panel_bytes / 64), pieces)};
}

// A chunk's weights as whole tiles of bytes: where they lie, or written to `wide`.
template <WeightKind KIND>
INLINE const uint8_t* whole_tiles(const uint8_t* records, int groups, uint8_t* wide) {
    if (KIND == U8 && groups % 2 == 0) return records;
    if constexpr (KIND == U8) {
        memcpy(wide, records, static_cast<size_t>(groups) * record_bytes(U8));
    } else {
        widen(records, groups, wide);
    }
    if (groups % 2) memset(wide + groups * record_bytes(U8), 0, static_cast<size_t>(record_bytes(U8)));
    return wide;
}

template <WeightKind KIND>
void run(const Gemm& gemm, const Block& block) {
    const SplitRows& x = gemm.split;
    const int groups = gemm.k / GROUP, chunks = count_chunks(groups);
    const int64_t panel_bytes = panel_bytes_of(KIND, groups);
    const Passes passes = Passes::of(block.end_row - block.row);
    const int second = passes.rows - Passes::tile_rows(passes);
    alignas(64) float sums[MOST_PASSES * PASS_ROWS * PANEL];
    alignas(64) uint8_t wide[MOST_CHUNK_BYTES], gathered[MOST_CHUNK_BYTES];
    const HighParts high = HighParts::of(gemm);
    const Tiles shapes(product_shapes(Passes::tile_rows(passes)));
    for (int panel = block.panel; panel < block.end_panel; ++panel) {
        const uint8_t* weights = static_cast<const uint8_t*>(gemm.weights) + panel * panel_bytes;
        Prefetch prefetch = next_panel(gemm, block, panel, panel_bytes, passes.count * chunks);
        for (int c = 0; c < chunks; ++c) {
            const ChunkGroups here = groups_of(c, groups);
            const WeightChunk chunk = chunk_of(KIND, weights, c, here.first);
            const ChunkBytes bytes{chunk.units, whole_tiles<KIND>(chunk.records, here.count, wide)};
            written();
            for (int pass = 0; pass < passes.count; ++pass) {
                const int row = block.row + Passes::begin(passes, pass);
                const TileRows rows{x.low + row * x.stride + here.first * GROUP, x.stride, divide_up(here.count, 2)};
                const Piece piece{x.chunks + static_cast<int64_t>(row) * chunks + c,
                                  chunks,
                                  passes.rows,
                                  sums + pass * passes.rows * PANEL,
                                  c == 0,
                                  c + 1 == chunks ? finish_of(gemm, panel) : KEEP,
                                  row,
                                  Passes::repeated(passes, pass),
                                  panel};
                const HighPart& part = HighParts::part(high, block, pass, c);
                passes.rows > TILE_ROWS ? multiply_piece<true>(gemm, piece, bytes, rows, part, second, gathered)
                                        : multiply_piece<false>(gemm, piece, bytes, rows, part, second, gathered);
                Prefetch::some(prefetch);
            }
        }
    }
}

}  // namespace

void gather_high_rows(const Gemm& gemm, const Block& block, int pass) {
    const SplitRows& x = gemm.split;
    const Passes passes = Passes::of(block.end_row - block.row);
    const HighParts high = HighParts::of(gemm);
    const int64_t row = block.row + Passes::begin(passes, pass);
    int8_t* to = high.rows + (block.row / PASS_ROWS + pass) * high.pass_bytes;
    for (int c = 0; c < high.chunks; ++c) {
        const int8_t* at = x.high + row * x.stride + groups_of(c, gemm.k / GROUP).first * GROUP;
        HighPart& part = HighParts::part(high, block, pass, c);
        part = gather_high(at, x.stride, x.chunks + row * high.chunks + c, high.chunks, passes.rows, to);
        to += passes.rows * part.rows.stride;
    }
}

void multiply_quantised_amx(const Gemm& gemm, const Block& block) {
    gemm.kind == U8 ? run<U8>(gemm, block) : run<U4>(gemm, block);
}

}  // namespace octavo::OCTAVO_VARIANT
#endif
