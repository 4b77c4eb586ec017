// What the variants offer to the rest: plain structs and a table of functions, nothing inline. Every instruction set
// compiles the sources in variant/ into a namespace of its own; this header is all that they share with other objects,
// so that the linker never picks a copy that was compiled for instructions which this machine lacks.
#pragma once
#include <stdint.h>

namespace octavo {

constexpr int PANEL = 32;         // output features that are packed together
constexpr int GROUP = 32;         // input features that share a scale
constexpr int BLOCK_TOKENS = 16;  // tokens of a cache block
constexpr int PARTITION_TOKENS = 256;

// Runs item(job, index, thread) for every index below count, on the caller's thread and the pool's.
struct Parallel {
    void* pool;
    int threads;
    void (*run)(void* pool, void (*item)(void* job, int index, int thread), void* job, int count);
};

// How weights lie in memory. A matrix [N, K] is cut into panels of 32 output features.
//   F32:  panel [K][32] floats.
//   BF16: panel [ceil(K / 2)][32][2] bfloat16.
//   U8, U4: panel [chunks], each 32 float units, one of each output feature, then the records of its groups.
//   A record of U8: bytes [8][32][4] (input feature / 4, output feature, input feature % 4). A weight is unit * (byte -
//   128).
//   A record of U4: quants [8][4][16], of each output feature its input features 0..15 in the low nibbles and 16..31 in
//   the high ones; then steps, uint8 [8][4], and bases, uint16 [8][4]. Output feature f is at [f / 16 * 4 + f % 4]
//   [f % 16 / 4]. A quant stands for a byte of U8: (16 * step * quant + base) / 256, without what is after the point: 8
//   bits that round the weights which the 4 bits mean.
enum WeightKind : int32_t { F32, BF16, U8, U4, WEIGHT_KINDS };

// Bytes of a record, of what comes before the steps of one of U4, and which of its 32 an output feature is. Static:
// every object has its own.
constexpr int UNIT_BYTES = PANEL * 4, NIBBLE_BYTES = GROUP / 2 * PANEL;
__attribute__((always_inline)) static constexpr int nibble_place(int feature) {
    return (feature / 16 * 4 + feature % 4) * 4 + feature % 16 / 4;
}
__attribute__((always_inline)) static constexpr int record_bytes(WeightKind kind) {
    return kind == U8 ? GROUP * PANEL : NIBBLE_BYTES + PANEL * 3;
}

// Products of a chunk are added as integers: 1024 * 127 * 127 is less than 2^24, which floats have, too.
constexpr int MOST_CHUNK_GROUPS = 32;

// Groups of a chunk, of all but the last one: even, since tiles hold two.
__attribute__((always_inline)) static constexpr int chunk_groups(int groups) {
    const int chunks = (groups + MOST_CHUNK_GROUPS - 1) / MOST_CHUNK_GROUPS;
    return ((groups + chunks - 1) / chunks + 1) / 2 * 2;
}

// Activations of products with U8 and U4: scale * (low + 128 * high), integers of 15 bits with one scale a chunk. Most
// are at most 127, and high is 0: products with high are needed only where it is not.
struct alignas(16) SplitChunk {
    float scale;
    int32_t low_start, high_start;         // -128 * the sum of the parts: what makes bytes weights less 128
    int32_t any_high;                      // whether a bit of high is set
    uint64_t high[MOST_CHUNK_GROUPS / 8];  // bit q: one of the features 4 q to 4 q + 3 has a high part that is not 0
};
struct SplitRows {
    int8_t *low, *high;  // [rows, stride]; what follows the last row is readable up to a whole 64
    int64_t stride;
    SplitChunk* chunks;  // [rows, chunks]
};

// How the panels of a gated product are joined: 16 gate features of each, then their 16 up features.
enum Gate : int32_t { NO_GATE, GATE_SILU, GATE_GELU_TANH };

// out = product + bias + residual, or activation(gate + its bias) * (up + its bias) + residual
struct Epilogue {
    float* out;
    int64_t out_stride;
    const float* residual;  // may be out, or null
    int64_t residual_stride;
    const float* bias;  // [N], of a gated product first gate's, then up's; or null
    Gate gate;          // gated: out has N / 2 columns
};

struct Gemm {
    WeightKind kind;
    const void* weights;
    const void* input;  // F32: float [rows, K]; BF16: uint16_t [rows, K rounded up to 2]
    SplitRows split;    // U8 and U4
    int rows, n, k;
    Epilogue epilogue;
    uint8_t* scratch;  // gemm_scratch_bytes, for high parts
};
constexpr int PASS_ROWS = 32, HIGH_PART_BYTES = 320;  // of each so many rows and chunk: which features have high parts
int64_t gemm_scratch_bytes(WeightKind kind, int rows, int k);

// total = x + residual; out = total / sqrt(mean(total^2) + eps) * weight
struct RmsNorm {
    const float* x;
    const float* residual;  // or null
    const float* weight;
    float* total;  // or null
    float* out;
    int rows, width;
    float eps;
};

// Rows of a gated product before its gate, panel by panel as its weights are joined: out = activation(gate + its bias)
// * (up + its bias), the bits of an epilogue that does the same.
struct Activation {
    const float* panels;  // [rows, panels, PANEL]
    const float* bias;    // [2 * features], first gate's, then up's; or null
    Gate gate;
    float* out;  // [rows, features]
    int rows, features;
};

// Rows on their way into a product: gathered, normed as RmsNorm does, written as Gemm::input wants them, in one pass.
struct Prepare {
    const float* x;         // [any, width]
    const int32_t* gather;  // [rows], which rows of x; or null for the first ones
    const float* norm;      // [width], or null for no norm
    float eps;
    WeightKind kind;
    void* input;
    SplitRows split;
    int rows, width;
};

// x = x + y / sqrt(mean(y^2) + eps) * weight
struct AddNorm {
    float* x;
    const float* y;
    const float* weight;
    int rows, width;
    float eps;
};

enum CacheKind : int32_t { CACHE_F32, CACHE_BF16, CACHE_INT8, CACHE_KINDS };

// One layer's cache: blocks of 16 tokens, block_bytes each. A block holds its kv heads one after the other, and a head
//   keys   F32: [head_dim][16]   BF16: [head_dim / 2][16][2]   INT8: [head_dim / 4][16][4], unsigned: quant + 128
//   values F32: [16][head_dim]   BF16: [8][head_dim][2]        INT8: [4][head_dim][4]
//   INT8 only: float key scales [16], value scales [16]
struct Cache {
    uint8_t* data;
    int64_t block_bytes;
    CacheKind kind;
    int kv_heads, head_dim;
};

// Norms (if weights are given) and rotates q and k of qkv = [T, heads + 2 * kv_heads, head_dim], writes k and v to the
// cache and the rotated q to q_out [T, heads, head_dim].
struct RopeCache {
    const float* qkv;
    const float* q_norm;  // [head_dim], or null
    const float* k_norm;
    float eps;
    const float* cos;  // [T, half]
    const float* sin;
    int half;
    const int64_t* slots;  // [T], -1: written nowhere
    float* q_out;
    int tokens, heads;
    Cache cache;
};

// A few queries of one sequence, next to each other in the step.
struct QueryTile {
    int32_t row, begin, count;
    int32_t shared = 0;  // partitions, from the first on, that are attended together with other tiles
};

// A partition that several tiles see whole and at the same blocks: shared_tiles[first .. first + count].
struct SharedTiles {
    int32_t partition, first, count;
};

struct Attention {
    const float* q;                  // [T, heads, head_dim]
    float* out;                      // the same
    const int32_t* positions;        // [T]
    const int32_t* context_lengths;  // [R]
    const int32_t* block_tables;     // [R, max_blocks]
    int64_t max_blocks;
    const QueryTile* tiles;
    int num_tiles, heads;
    const SharedTiles* shared;
    const int32_t* shared_tiles;
    int num_shared;
    int stored_partitions;  // of an item: all if split, otherwise the shared ones
    bool split;  // partitions are computed on their own and merged afterwards: same numbers, more parallelism
    int window;  // 0: all
    float scale, softcap;
    Cache cache;
    float* partials;  // [tiles, kv_heads, slices, stored_partitions, ATTENTION_ROWS, head_dim + 2]
    float* scratch;   // [threads, attention_scratch_floats(head_dim)]
    int64_t scratch_stride;
};
constexpr int ATTENTION_ROWS = 16;               // at most heads of a group, or queries * heads of a group
int64_t attention_scratch_floats(int head_dim);  // a thread's: scores, queries, weights, two partial results

// What one pass over a row of logits finds.
struct Scan {
    float largest;      // NaN is passed over
    int32_t magnitude;  // of the largest |logit|, as bits: below 0x7f800000 all are finite
};

// A row of logits is cut into partitions counted from id 0, as contexts are.
constexpr int PARTITION_LOGITS = 256;
constexpr int32_t WEIGHT_ONE = 1 << 30;  // the weight of the largest logit

// The router's choice: for each row of logits [rows, experts] the top_k largest, by falling probability, of equal ones
// the first; weights are softmax(logits), divided by the sum of the chosen ones if normalize.
struct Route {
    const float* logits;
    int32_t* chosen;  // [rows, top_k]
    float* weights;   // [rows, top_k]
    int rows, experts, top_k;
    bool normalize;
};

// A matrix of an adapter. F32: [rows][columns padded to whole thirty-twos with zeros]. BF16: the same, of each 32 the
// weights i and i + 16 side by side.
struct LoraFactor {
    const void* data;
    bool bf16;
};

struct LoraAdapter {
    LoraFactor down;  // [rank][width]
    LoraFactor up;    // [rank][columns]
    int rank;
    float scale;
};

// A few rows of one adapter: rows[begin] to rows[begin + count - 1].
struct LoraTile {
    int32_t adapter, begin, count;
};
constexpr int LORA_ROWS = 4;

// out[row] += scale * (x[row] · downᵀ) · up, for every row of the tiles.
struct LoraJob {
    const float* x;  // [any, width]
    float* out;      // [any, columns]
    int64_t out_stride;
    const int32_t* rows;
    const LoraTile* tiles;
    const LoraAdapter* adapters;
    float* ranks;  // [rows of the tiles, most_ranks]
    int num_tiles, width, columns, most_ranks;
};

struct Kernels {
    const char* name;
    void (*gemm)(const Parallel&, const Gemm&);
    // Quantise one panel of float weights, values [32][k], to 4 bits: records of the nibbles of U4, then 32 float16
    // scales and 32 float16 minima.
    void (*quantize_weights)(const float* values, int k, uint8_t* records);
    void (*prepare)(const Parallel&, const Prepare&);
    void (*rms_norm)(const Parallel&, const RmsNorm&);
    void (*add_norm)(const Parallel&, const AddNorm&);
    void (*softcap)(const Parallel&, float* x, int64_t count, float cap);  // x = tanh(x / cap) * cap
    void (*route)(const Parallel&, const Route&);
    void (*lora)(const Parallel&, const LoraJob&);
    void (*activate)(const Parallel&, const Activation&);
    void (*rope_cache)(const Parallel&, const RopeCache&);
    void (*attention)(const Parallel&, const Attention&);
    // maxima: [partitions][16], of every sixteenth logit of a partition.
    Scan (*scan_logits)(const float* logits, int count, float* maxima);
    // Weights exp((logit - largest) * inverse_temperature), 0 where that is less than `least`, times WEIGHT_ONE and cut
    // to integers. Returns their sum. weights: [count] or null; sums: [partitions] or null.
    int64_t (*weigh_logits)(const float* logits, int count, float largest, float inverse_temperature, float least,
                            int32_t* weights, int64_t* sums);
    // The logits of at least `limit` and their ids, in order; both have room for 15 more. Returns how many.
    int (*gather_logits)(const float* logits, int count, float limit, float* values, int32_t* ids);
    // Sum of exp(logit - largest), in a fixed order.
    double (*sum_exponentials)(const float* logits, int count, float largest);
};

}  // namespace octavo
