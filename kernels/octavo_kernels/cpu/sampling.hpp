// Sampling of a whole step: from logits to tokens, the same whatever runs beside a row and whoever computes it.
//
// The tokens are ranked once: largest logit first, of equal ones the lowest id. Every filter keeps the beginning of that
// ranking. Weights are integers (see weigh_logits), so their sums are exact in any order. A uniform from Philox picks
// the first id, in the order of ids, at which the cumulative weight of what is kept exceeds uniform * total.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernels.hpp"

namespace octavo {

// What a sequence has used: how often each token is in its output, and 0 for one that is in its prompt only.
class TokenCounts {
public:
    void see(std::int32_t token) { counts_.try_emplace(token, 0); }
    void add(std::int32_t token) { ++counts_[token]; }
    const std::unordered_map<std::int32_t, std::int32_t>& counts() const { return counts_; }

private:
    std::unordered_map<std::int32_t, std::int32_t> counts_;
};

// How a sequence's tokens are drawn. Ids are inside the vocabulary.
struct SamplingSettings {
    std::uint64_t seed = 0;
    std::uint32_t choice = 0;
    bool greedy = false;
    float temperature = 1.0f;
    std::int64_t top_k = 0;  // below 1: all
    double top_p = 1.0;
    float min_p = 0.0f;
    float presence = 0.0f, frequency = 0.0f, repetition = 1.0f;
    std::int64_t min_tokens = 0;
    std::vector<std::int32_t> bias_ids;
    std::vector<float> bias;
    std::vector<std::int32_t> allowed;    // empty: all
    std::vector<std::int32_t> held_back;  // not before min_tokens
    std::int32_t vocab_size = 0;
};

// One sequence: it owns 1 + drafts consecutive rows of the logits. A draft is accepted if it is the token sampled there.
struct SequenceRow {
    const SamplingSettings* settings;
    TokenCounts* counts;  // null: no penalties
    std::int64_t position, generated;
    std::int32_t first, num_drafts;
    const std::int32_t* drafts;
    // What a grammar allows at each of its rows of logits, [1 + drafts, mask_words] bits, the lowest first; null: all.
    const std::uint32_t* masks = nullptr;
};

constexpr std::int32_t NOT_FINITE = -1, NOTHING_ALLOWED = -2;

struct SampleJob {
    const float* logits;  // [L, vocab]
    int vocab;
    std::vector<SequenceRow> rows;
    std::int32_t* tokens;  // [L]: a row's accepted drafts and one token more, from its first row of logits on
    std::int32_t* given;   // [R]: how many, or NOT_FINITE, or NOTHING_ALLOWED
    int mask_words = 0;
};

// A thread's memory for rows of that many logits.
std::size_t sampling_scratch_bytes(int vocab);

// scratch: [threads][sampling_scratch_bytes(vocab)], 64-byte aligned.
void sample(const Parallel& parallel, const Kernels& kernels, const SampleJob& job, std::byte* scratch);

// log_softmax(row)[token], for each of the rows; NaN if a row is not finite.
void log_probabilities(const Parallel& parallel, const Kernels& kernels, const float* logits, int rows, int vocab,
                       const std::int32_t* tokens, float* out, std::byte* scratch);

// The `count` most probable tokens of each row, [rows, count], and their log-probabilities.
void top_log_probabilities(const Parallel& parallel, const Kernels& kernels, const float* logits, int rows, int vocab,
                           int count, std::int32_t* ids, float* out, std::byte* scratch);

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// 53 random bits of (seed, choice, position) as a number in [0, 1).
double uniform(std::uint64_t seed, std::uint32_t choice, std::uint32_t position);

}  // namespace octavo
