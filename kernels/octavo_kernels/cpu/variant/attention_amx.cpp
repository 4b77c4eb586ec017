// The sums of products over an int8 cache with the tile registers of AMX (Intel, Sapphire Rapids and later).
//
// The keys of a block and 64 dimensions are a tile as they lie in the cache; of the values four blocks are put behind
// one another. Sums are exact: in any order the same.
#include "amx.hpp"
#include "attention.hpp"

namespace octavo::OCTAVO_VARIANT {

#if defined(__AMX_TILE__)
namespace {

constexpr int SUMS = PARTITION_TOKENS;  // of a digit's row
constexpr int TILE_BYTES = 16 * 64;

// Digits [2][16][stride] times four or fewer columns of 16 sums. Each consists of `steps` tiles.
struct Product {
    const void* digits;
    int64_t stride;
    const uint8_t* columns[4];
    int64_t column_stride, step_bytes;
    int count, steps;
};

#define MULTIPLY(sum, digits, column)      \
    if constexpr (SIGNED_DIGITS)           \
        _tile_dpbsud(sum, digits, column); \
    else                                   \
        _tile_dpbusd(sum, digits, column)

// A tile for the upper digits and one for the lower ones: two columns at once.
template <bool SIGNED_DIGITS>
INLINE void multiply(const Product& p, int32_t* sums) {
    written();
    for (int column = 0; column < p.count; column += 2) {
        const bool both = column + 1 < p.count;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int step = 0; step < p.steps; ++step) {
            const uint8_t* digits = static_cast<const uint8_t*>(p.digits) + step * 64;
            const int64_t at = step * p.step_bytes;
            _tile_loadd(4, digits, p.stride);
            _tile_loadd(6, p.columns[column] + at, p.column_stride);
            MULTIPLY(0, 4, 6);
            _tile_loadd(5, digits + ATTENTION_ROWS * p.stride, p.stride);
            MULTIPLY(1, 5, 6);
            if (!both) continue;
            _tile_loadd(7, p.columns[column + 1] + at, p.column_stride);
            MULTIPLY(2, 4, 7);
            MULTIPLY(3, 5, 7);
        }
        int32_t* upper = sums + column * 16;
        int32_t* lower = upper + ATTENTION_ROWS * SUMS;
        _tile_stored(0, upper, SUMS * 4);
        _tile_stored(1, lower, SUMS * 4);
        if (!both) continue;
        _tile_stored(2, upper + 16, SUMS * 4);
        _tile_stored(3, lower + 16, SUMS * 4);
    }
    written();
}

// upper * 128 + lower of a row's 16 sums
INLINE I join(const int32_t* sums) {
    return add_int(shift_left(load_int(sums), DIGIT_BITS), load_int(sums + ATTENTION_ROWS * SUMS));
}

}  // namespace

// Of all tiles the same: rows that there are not give sums that nobody reads. 0 to 3: sums, 4 and 5: digits, 6 and 7:
// keys or values.
TileRegisters::TileRegisters(bool wanted) : wanted(wanted) {
    if (!wanted) return;
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) shapes.set(tile, 16, 64);
    asm volatile("" ::"r"(&shapes) : "memory");  // all of it is read
    _tile_loadconfig(&shapes);
}

TileRegisters::~TileRegisters() {
    if (wanted) _tile_release();
}

// Of few rows (decode) the vector units make the sums while keys and values arrive, and tiles would only wait. A tile
// of keys begins in a head's keys and must end in its values.
bool fits_tiles(const Cache& cache, int rows) {
    return cache.kind == CACHE_INT8 && rows > ATTENTION_ROWS / 2 && cache.head_dim >= 32;
}

void multiply_keys(const Span& span, const Scratch& scratch) {
    Product p{scratch.digits, scratch.query_stride, {}, 64, TILE_BYTES, 0, scratch.query_stride / 64};
    for (int block = 0; block < span.count; block += 4) {
        p.count = span.count - block < 4 ? span.count - block : 4;
        for (int b = 0; b < p.count; ++b) p.columns[b] = span.blocks[block + b].keys;
        multiply<true>(p, scratch.sums + block * BLOCK_TOKENS);
    }
}

void scale_scores(const Span& span, int begin, int end, const Scratch& scratch, float* scores) {
    for (int r = begin; r < end; ++r, scores += PARTITION_TOKENS) {
        const I offset = set1_int(scratch.offsets[r]);
        const F unit = set1(scratch.units[r]);
        const int32_t* sums = scratch.sums + r * SUMS;
        for (int b = 0; b < span.count; ++b) {
            const F sum = to_float(add_int(join(sums + b * 16), offset));
            store(scores + b * BLOCK_TOKENS, mul(mul(sum, load(span.blocks[b].key_scales)), unit));
        }
    }
}

void stage_values(const Rows& rows, const Span& span, int begin, int end, const Scratch& scratch) {
    const int bytes = BLOCK_TOKENS * rows.attention.cache.head_dim;
    for (int b = begin * span.count / rows.count; b < end * span.count / rows.count; ++b) {
        uint8_t* to = scratch.values + b * bytes;
        for (int i = 0; i < bytes; i += 64) {
            _mm512_store_si512(to + i, load_int(span.blocks[b].values + i));
            if (!span.next[b]) continue;
            __builtin_prefetch(span.next[b] + i, 0, 2);
            __builtin_prefetch(span.next[b] + bytes + i, 0, 2);
        }
    }
}

void weigh_by_tiles(const Rows& rows, const Span& span, const Scratch& scratch, float* weighted) {
    const int count = rows.count, head_dim = rows.attention.cache.head_dim;
    // Behind the last block lies what earlier ones left there: its weights are 0.
    Product p{scratch.weights, PARTITION_TOKENS, {}, head_dim * 4, head_dim * 64, 0, (span.count + 3) / 4};
    for (int d = 0; d < head_dim; d += 64) {
        int32_t* sums = scratch.sums + d % PARTITION_TOKENS;
        p.count = head_dim - d < 64 ? (head_dim - d) / 16 : 4;
        for (int v = 0; v < p.count; ++v) p.columns[v] = scratch.values + (d + v * 16) * 4;
        multiply<false>(p, sums);
        for (int r = 0; r < count; ++r) {
            const F unit = set1(scratch.weight_units[r]);
            for (int v = 0; v < p.count; ++v) {
                const I sum = join(sums + r * SUMS + v * 16);
                store(weighted + r * head_dim + d + v * 16, mul(to_float(sum), unit));
            }
        }
    }
}

#else

TileRegisters::TileRegisters(bool wanted) : wanted(wanted) {}
TileRegisters::~TileRegisters() {}
bool fits_tiles(const Cache&, int) { return false; }
void multiply_keys(const Span&, const Scratch&) {}
void scale_scores(const Span&, int, int, const Scratch&, float*) {}
void stage_values(const Rows&, const Span&, int, int, const Scratch&) {}
void weigh_by_tiles(const Rows&, const Span&, const Scratch&, float*) {}

#endif

}  // namespace octavo::OCTAVO_VARIANT
