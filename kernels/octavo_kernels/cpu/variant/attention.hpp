// What attention's files share: the rows of a work item, what they see of a partition, and a thread's memory.
#pragma once
#include "cache.hpp"
#include "gemm.hpp"

namespace octavo::OCTAVO_VARIANT {

// The rows (query, head) that one work item computes, and the positions that they see. They are of one sequence, or see
// the same blocks of the partition at hand.
struct Rows {
    const Attention& attention;
    const int32_t* table;       // of blocks
    const int32_t* next_table;  // of the sequence that is likely to follow on this thread, or null
    int kv_head, count;
    bool cold;                        // this thread has not just read the same keys and values for other rows
    int64_t offsets[ATTENTION_ROWS];  // of the row in q and out
    int first[ATTENTION_ROWS], last[ATTENTION_ROWS];
    int lowest, highest;  // of all rows; nobody sees anything if lowest > highest
};

// The part of a partition that the rows see: positions begin up to high, in `count` blocks. Scores and weights of a row
// are counted from `begin`. Nobody sees the positions before `low`.
struct Span {
    int begin, low, high, count;
    HeadBlock blocks[PARTITION_TOKENS / BLOCK_TOKENS];
    // What this thread will want after them: the next head's blocks, which lie behind these, or after the last head
    // those of the sequence that follows. Null where that is not known.
    const uint8_t* next[PARTITION_TOKENS / BLOCK_TOKENS];
};

// What a partition gives, or several: largest, total [rows]; weighted [rows][head_dim]. Scores are to the base of 2.
struct Partial {
    float* weighted;
    float* largest;
    float* total;
};

// A thread's memory, as attention_scratch_floats() counts it; every part begins on a cache line.
struct Scratch {
    float* scores;        // [rows][256], later the weights
    float* queries;       // [rows][head_dim] times the scale, of a float cache
    int8_t* digits;       // [2][16][query_stride], upper ones, then lower ones, of an int8 cache
    int query_stride;     // head_dim, rounded up with zeros for whole tiles
    float* units;         // of the queries' lower digits, [rows]
    int32_t* offsets;     // what is added to a row's sums of products, [rows]
    uint8_t* weights;     // digits [2][16][256], as the queries'
    float* value_scales;  // of the partition, [256]
    float* weight_units;  // of their lower digits, [rows]
    int32_t* sums;        // [2][16][256], from tile registers
    uint8_t* values;      // [64][head_dim][4]: those of 256 tokens behind one another
    Partial merged, next;
};

// By the cache's kind: what scores want of the rows' queries, and a partition's part in the result.
void prepare_floats(const Rows&, const Scratch&);
void attend_floats(const Rows&, const Span&, const Scratch&, const Partial&);
void prepare_integers(const Rows&, const Scratch&);
void attend_integers(const Rows&, const Span&, const Scratch&, const Partial&);

// Two digits: a query's upper one is -127..127 and its lower one -64..63, a weight's are 0..127.
constexpr int DIGIT_BITS = 7;

// While this lives, the tile registers have the shapes that attention wants, if it wants them.
struct TileRegisters {
    const bool wanted;

    explicit TileRegisters(bool wanted);
    ~TileRegisters();
    TileRegisters(const TileRegisters&) = delete;
    TileRegisters& operator=(const TileRegisters&) = delete;
};

// An int8 cache's scores and weighted values by the tile registers of AMX: the same bits.
bool fits_tiles(const Cache&, int rows);
void multiply_keys(const Span&, const Scratch&);                                    // all rows' sums
void scale_scores(const Span&, int begin, int end, const Scratch&, float* scores);  // of rows begin up to end
void stage_values(const Rows&, const Span&, int begin, int end, const Scratch&);    // these rows' share of the copying
void weigh_by_tiles(const Rows&, const Span&, const Scratch&, float* weighted);

namespace {

INLINE void fetch(const uint8_t* from, int bytes) {
    for (int at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// Fetch a few blocks' values, which will be wanted when the scores are there, and the keys of those that follow.
INLINE void fetch_ahead(const Span& span, int begin, int count, int plane) {
    for (int b = begin; b < begin + count; ++b) {
        for (int at = 0; at < plane; at += 64) __builtin_prefetch(span.blocks[b].values + at);
        if (span.next[b]) fetch(span.next[b], plane);
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_VARIANT
