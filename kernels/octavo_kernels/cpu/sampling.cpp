#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

namespace octavo {
namespace {

constexpr float FORBIDDEN = -std::numeric_limits<float>::infinity();
constexpr std::int32_t INFINITE_BITS = 0x7f800000;
// Below exp(-20.8) a weight is 0; what is farther from the largest logit, in temperatures, need not be looked at.
constexpr double WEIGHTLESS_DISTANCE = 21.0;

// A token in the ranking: unique, larger is earlier.
struct Ranked {
    std::uint64_t rank;
    std::int32_t weight;
};

std::uint64_t rank_of(float logit, std::int32_t id) {
    logit += 0.0f;  // -0 is 0
    std::uint32_t bits;
    std::memcpy(&bits, &logit, 4);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<std::uint64_t>(bits) << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}

bool earlier(const Ranked& a, const Ranked& b) { return a.rank > b.rank; }

// The tokens that filters may keep, in the order of ids.
struct Candidates {
    float* logits;
    std::int32_t* ids;
    std::int32_t* weights;
    Ranked* ranked;
    int count;
};

// A thread's memory.
struct Scratch {
    float* maxima;       // [partitions][16]
    std::int64_t* sums;  // [partitions]
    float* adjusted;     // [vocab]
    Candidates candidates;
};

int partitions_of(int vocab) { return (vocab + PARTITION_LOGITS - 1) / PARTITION_LOGITS; }

std::size_t padded(int vocab) { return static_cast<std::size_t>(partitions_of(vocab)) * PARTITION_LOGITS + 16; }

Scratch scratch_at(std::byte* memory, int vocab, int thread) {
    const std::size_t room = padded(vocab), partitions = static_cast<std::size_t>(partitions_of(vocab));
    std::byte* at = memory + static_cast<std::size_t>(thread) * sampling_scratch_bytes(vocab);
    const auto take = [&at](std::size_t bytes) { return std::exchange(at, at + bytes); };
    Scratch scratch{};
    scratch.candidates.ranked = reinterpret_cast<Ranked*>(take(room * sizeof(Ranked)));
    scratch.sums = reinterpret_cast<std::int64_t*>(take(partitions * sizeof(std::int64_t)));
    scratch.maxima = reinterpret_cast<float*>(take(partitions * 16 * sizeof(float)));
    scratch.adjusted = reinterpret_cast<float*>(take(room * sizeof(float)));
    scratch.candidates.logits = reinterpret_cast<float*>(take(room * sizeof(float)));
    scratch.candidates.ids = reinterpret_cast<std::int32_t*>(take(room * sizeof(std::int32_t)));
    scratch.candidates.weights = reinterpret_cast<std::int32_t*>(take(room * sizeof(std::int32_t)));
    return scratch;
}

// One row of logits on its way to a token. With `parallel` its passes are shared by the threads.
class LogitsRow {
public:
    LogitsRow(const Kernels& kernels, const Parallel* parallel, const float* logits, int vocab, const Scratch& scratch)
        : kernels_(kernels), parallel_(parallel), logits_(logits), vocab_(vocab), scratch_(scratch) {}

    void scan() {
        struct Slice {
            LogitsRow* row;
            Scan found[MAX_SLICES];
        } slices{this, {}};
        const int count = for_slices(
            [](void* pointer, int index, int) {
                Slice& all = *static_cast<Slice*>(pointer);
                const auto [begin, end] = all.row->slice(index);
                all.found[index] = all.row->kernels_.scan_logits(
                    all.row->logits_ + begin, end - begin, all.row->scratch_.maxima + begin / PARTITION_LOGITS * 16);
            },
            &slices);
        found_ = slices.found[0];
        for (int i = 1; i < count; ++i) {
            found_.largest = std::max(found_.largest, slices.found[i].largest);
            found_.magnitude = std::max(found_.magnitude, slices.found[i].magnitude);
        }
    }

    bool finite() const { return found_.magnitude < INFINITE_BITS; }
    // Adjusted logits may be -infinity.
    bool drawable() const { return found_.magnitude <= INFINITE_BITS && !(found_.largest > MOST); }
    bool nothing_allowed() const { return found_.largest == FORBIDDEN; }
    float largest() const { return found_.largest; }

    // The lowest id of the largest logit.
    std::int32_t best() const {
        for (int partition = 0;; ++partition) {
            const float* maxima = scratch_.maxima + partition * 16;
            if (std::find(maxima, maxima + 16, found_.largest) == maxima + 16) continue;
            const float* begin = logits_ + partition * PARTITION_LOGITS;
            const float* end = logits_ + std::min(vocab_, (partition + 1) * PARTITION_LOGITS);
            return static_cast<std::int32_t>(std::find(begin, end, found_.largest) - logits_);
        }
    }

    // Apply what changes the logits, in a copy, and scan that. mask: null, or the bits of what a grammar allows.
    void adjust(const SequenceRow& row, std::int64_t generated, const std::uint32_t* mask, int mask_words) {
        const SamplingSettings& settings = *row.settings;
        float* out = scratch_.adjusted;
        std::memcpy(out, logits_, static_cast<std::size_t>(vocab_) * sizeof(float));
        for (std::size_t i = 0; i < settings.bias_ids.size(); ++i) out[settings.bias_ids[i]] += settings.bias[i];
        if (row.counts) penalise(out, settings, *row.counts);
        if (!settings.allowed.empty()) {
            float* kept = scratch_.candidates.logits;
            std::size_t i = 0;
            for (const std::int32_t id : settings.allowed) kept[i++] = out[id];
            std::fill(out, out + vocab_, FORBIDDEN);
            i = 0;
            for (const std::int32_t id : settings.allowed) out[id] = kept[i++];
        }
        if (mask) forbid_unmasked(out, mask, mask_words);
        const bool held_back = generated < settings.min_tokens && !settings.held_back.empty();
        // Free until draw() gathers its candidates.
        float* values = scratch_.candidates.logits;
        if (held_back) {
            for (const std::int32_t id : settings.held_back) *values++ = std::exchange(out[id], FORBIDDEN);
        }
        logits_ = out;
        scan();
        // A grammar at its end allows nothing but to end: then nothing is held back.
        if (held_back && mask && nothing_allowed()) {
            for (auto id = settings.held_back.rbegin(); id != settings.held_back.rend(); ++id) out[*id] = *--values;
            scan();
        }
    }

    std::int32_t draw(const SamplingSettings& settings, double uniform) {
        inverse_ = 1.0f / settings.temperature;
        const bool top_k = settings.top_k > 0 && settings.top_k < vocab_, top_p = settings.top_p < 1.0;
        if (!top_k && !top_p) return draw_of_all(settings.min_p, uniform);
        std::uint64_t last = 0;
        std::int64_t total = 0;
        if (top_k) {
            gather(std::max(limit_of_top(settings.top_k), limit_of_weight(0.0)));
            total = weigh_candidates(0.0f);
            last = rank_candidates(settings.top_k, total);
        }
        if (top_p && top_k) {
            last = last_of_mass(needed(settings.top_p, total));
        } else if (top_p) {
            total = weigh(0.0f);
            const std::int64_t need = needed(settings.top_p, total);
            gather_mass(total, need);
            last = last_of_candidates(need);
        }
        return draw_of_candidates(last, settings.min_p, uniform);
    }

    // The `count` largest, the first first.
    const Ranked* top(int count) {
        gather(limit_of_top(count));
        std::fill(scratch_.candidates.weights, scratch_.candidates.weights + scratch_.candidates.count, 0);
        std::int64_t total = 0;
        rank_candidates(count, total);
        std::sort(scratch_.candidates.ranked, scratch_.candidates.ranked + count, earlier);
        return scratch_.candidates.ranked;
    }

private:
    static constexpr float MOST = std::numeric_limits<float>::max();
    static constexpr int MAX_SLICES = 64;

    int for_slices(void (*item)(void*, int, int), void* job) {
        slices_ = parallel_ ? std::min({parallel_->threads, MAX_SLICES, partitions_of(vocab_)}) : 1;
        if (slices_ == 1) {
            item(job, 0, 0);
        } else {
            parallel_->run(parallel_->pool, item, job, slices_);
        }
        return slices_;
    }

    // Whole partitions.
    std::pair<int, int> slice(int index) const {
        const int partitions = partitions_of(vocab_);
        const int begin = partitions * index / slices_, end = partitions * (index + 1) / slices_;
        return {begin * PARTITION_LOGITS, std::min(end * PARTITION_LOGITS, vocab_)};
    }

    void forbid_unmasked(float* logits, const std::uint32_t* mask, int words) const {
        for (int word = 0, id = 0; id < vocab_; ++word, id += 32) {
            const std::uint32_t bits = word < words ? mask[word] : 0;
            const int end = std::min(32, vocab_ - id);
            if (bits == 0) {
                std::fill(logits + id, logits + id + end, FORBIDDEN);
            } else if (bits != 0xffffffffu) {
                for (int i = 0; i < end; ++i) {
                    if (!(bits >> i & 1u)) logits[id + i] = FORBIDDEN;
                }
            }
        }
    }

    static void penalise(float* logits, const SamplingSettings& settings, const TokenCounts& counts) {
        for (const auto& [token, times] : counts.counts()) {
            float value = logits[token];
            if (settings.repetition != 1.0f)
                value = value > 0.0f ? value / settings.repetition : value * settings.repetition;
            if (times > 0) {
                value -= settings.frequency * static_cast<float>(times);
                value -= settings.presence;
            }
            logits[token] = value;
        }
    }

    // Sums of the partitions and of all.
    std::int64_t weigh(float least) {
        struct Slice {
            LogitsRow* row;
            float least;
            std::int64_t sums[MAX_SLICES];
        } slices{this, least, {}};
        const int count = for_slices(
            [](void* pointer, int index, int) {
                Slice& all = *static_cast<Slice*>(pointer);
                const auto [begin, end] = all.row->slice(index);
                all.sums[index] = all.row->kernels_.weigh_logits(
                    all.row->logits_ + begin, end - begin, all.row->found_.largest, all.row->inverse_, all.least,
                    nullptr, all.row->scratch_.sums + begin / PARTITION_LOGITS);
            },
            &slices);
        std::int64_t total = 0;
        for (int i = 0; i < count; ++i) total += slices.sums[i];
        return total;
    }

    std::int32_t draw_of_all(float least, double uniform) {
        std::int64_t target = target_of(uniform, weigh(least));
        int partition = 0;
        while (target >= scratch_.sums[partition]) target -= scratch_.sums[partition++];
        const int begin = partition * PARTITION_LOGITS, count = std::min(PARTITION_LOGITS, vocab_ - begin);
        std::int32_t* weights = scratch_.candidates.weights;
        kernels_.weigh_logits(logits_ + begin, count, found_.largest, inverse_, least, weights, nullptr);
        int i = 0;
        while (target >= weights[i]) target -= weights[i++];
        return begin + i;
    }

    std::int32_t draw_of_candidates(std::uint64_t last, float least, double uniform) {
        Candidates& all = scratch_.candidates;
        weigh_candidates(least);
        std::int64_t total = 0;
        for (int i = 0; i < all.count; ++i) {
            if (rank_of(all.logits[i], all.ids[i]) < last) all.weights[i] = 0;
            total += all.weights[i];
        }
        std::int64_t target = target_of(uniform, total);
        int i = 0;
        while (target >= all.weights[i]) target -= all.weights[i++];
        return all.ids[i];
    }

    // Below the total, whose 48 bits at most are exact.
    static std::int64_t target_of(double uniform, std::int64_t total) {
        return static_cast<std::int64_t>(uniform * static_cast<double>(total));
    }

    static std::int64_t needed(double top_p, std::int64_t total) {
        return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(top_p * static_cast<double>(total))));
    }

    void gather(float limit) {
        Candidates& to = scratch_.candidates;
        to.count = kernels_.gather_logits(logits_, vocab_, limit, to.logits, to.ids);
    }

    std::int64_t weigh_candidates(float least) {
        const Candidates& all = scratch_.candidates;
        return kernels_.weigh_logits(all.logits, all.count, found_.largest, inverse_, least, all.weights, nullptr);
    }

    // A logit that no token of more than `weight` is below.
    float limit_of_weight(double weight) const {
        double distance = WEIGHTLESS_DISTANCE;
        // Generously: one part in a thousand is far more than the rounding of a weight.
        if (weight >= 1.0) distance = std::min(distance, std::log(WEIGHT_ONE / weight) + 1e-3);
        return static_cast<float>(static_cast<double>(found_.largest) - distance / static_cast<double>(inverse_));
    }

    // A logit that at least `count` logits reach: the maxima of disjoint parts do.
    float limit_of_top(std::int64_t count) {
        const int partitions = partitions_of(vocab_), parts = partitions * 16;
        if (count > parts) return FORBIDDEN;
        float* parts_maxima = scratch_.candidates.logits;
        int number = parts;
        if (count <= partitions / 2) {
            // Coarser parts are enough, and fewer to look through.
            number = partitions;
            for (int p = 0; p < partitions; ++p)
                parts_maxima[p] = *std::max_element(scratch_.maxima + p * 16, scratch_.maxima + p * 16 + 16);
        } else {
            std::copy(scratch_.maxima, scratch_.maxima + parts, parts_maxima);
        }
        float* at = parts_maxima + count - 1;
        std::nth_element(parts_maxima, at, parts_maxima + number, std::greater<>());
        return *at;
    }

    // Of a row whose weights sum up to `total`, candidates that hold `need`. What cannot be needed is left out: tokens
    // that together, were all as heavy as the heaviest of them, would still not exceed what may be missing.
    void gather_mass(std::int64_t total, std::int64_t need) {
        gather(limit_of_weight(static_cast<double>((total - need) / vocab_)));
        weigh_candidates(0.0f);
    }

    // As last_of_mass for all candidates, of which only those are ranked that lie about where the last one is: how much
    // there is at each distance from the largest logit tells where.
    std::uint64_t last_of_candidates(std::int64_t need) {
        constexpr int STRETCHES = 2048;
        const float stretch = static_cast<float>(STRETCHES / WEIGHTLESS_DISTANCE) * inverse_;
        const auto stretch_of = [&](float logit) {
            const float distance = (found_.largest - logit) * stretch;
            return distance < STRETCHES - 1 ? static_cast<int>(distance) : STRETCHES - 1;
        };
        Candidates& all = scratch_.candidates;
        std::int64_t held[STRETCHES] = {};
        for (int i = 0; i < all.count; ++i) held[stretch_of(all.logits[i])] += all.weights[i];
        int where = 0;
        while (need > held[where]) need -= held[where++];
        ranked_ = 0;
        for (int i = 0; i < all.count; ++i) {
            if (stretch_of(all.logits[i]) == where)
                all.ranked[ranked_++] = {rank_of(all.logits[i], all.ids[i]), all.weights[i]};
        }
        return last_of_mass(need);
    }

    // Put the candidates into the ranking, and drop all but the first `count` there, whose weights are the new total.
    // Returns the last rank kept.
    std::uint64_t rank_candidates(std::int64_t count, std::int64_t& total) {
        Candidates& all = scratch_.candidates;
        for (int i = 0; i < all.count; ++i) all.ranked[i] = {rank_of(all.logits[i], all.ids[i]), all.weights[i]};
        ranked_ = all.count;
        if (count >= all.count) return 0;
        ranked_ = static_cast<int>(count);
        std::nth_element(all.ranked, all.ranked + count - 1, all.ranked + all.count, earlier);
        total = 0;
        for (int i = 0; i < ranked_; ++i) total += all.ranked[i].weight;
        return all.ranked[count - 1].rank;
    }

    // The last rank of the shortest beginning of the ranking that holds `need`.
    std::uint64_t last_of_mass(std::int64_t need) {
        Ranked* begin = scratch_.candidates.ranked;
        Ranked* end = begin + ranked_;
        while (end - begin > 32) {
            Ranked* middle = begin + (end - begin) / 2;
            std::nth_element(begin, middle, end, earlier);
            std::int64_t held = 0;
            for (const Ranked* at = begin; at < middle; ++at) held += at->weight;
            if (held >= need) {
                end = middle;
            } else {
                need -= held;
                begin = middle;
            }
        }
        std::sort(begin, end, earlier);
        while (need > begin->weight) need -= (begin++)->weight;
        return begin->rank;
    }

    const Kernels& kernels_;
    const Parallel* parallel_;
    const float* logits_;
    const int vocab_;
    Scratch scratch_;
    Scan found_{};
    float inverse_ = 1.0f;
    int slices_ = 1, ranked_ = 0;
};

bool adjusts(const SequenceRow& row, std::int64_t generated) {
    const SamplingSettings& s = *row.settings;
    return row.counts || row.masks || !s.bias_ids.empty() || !s.allowed.empty() ||
           (generated < s.min_tokens && !s.held_back.empty());
}

// The token that the row's `index`-th position gets, or why it gets none.
std::int32_t sample_position(const SampleJob& job, const Kernels& kernels, const Parallel* parallel,
                             const SequenceRow& row, int index, const Scratch& scratch) {
    const float* logits = job.logits + static_cast<std::int64_t>(row.first + index) * job.vocab;
    LogitsRow at(kernels, parallel, logits, job.vocab, scratch);
    at.scan();
    if (!at.finite()) return NOT_FINITE;
    const std::int64_t generated = row.generated + index;
    const std::uint32_t* mask = row.masks ? row.masks + static_cast<std::int64_t>(index) * job.mask_words : nullptr;
    if (adjusts(row, generated)) at.adjust(row, generated, mask, job.mask_words);
    if (!at.drawable()) return NOT_FINITE;
    if (at.nothing_allowed()) return NOTHING_ALLOWED;
    if (row.settings->greedy) return at.best();
    const double draw = uniform(row.settings->seed, row.settings->choice,
                                static_cast<std::uint32_t>(row.position + index));
    return at.draw(*row.settings, draw);
}

// Positions that one thread computes in order: all of a sequence if each changes the counts for the next, else one.
struct Item {
    int row, index, count;
};

struct Run {
    const SampleJob& job;
    const Kernels& kernels;
    std::byte* scratch;
    std::vector<Item> items;

    void item(int index, int thread, const Parallel* parallel) const {
        const Item& item = items[static_cast<std::size_t>(index)];
        const SequenceRow& row = job.rows[static_cast<std::size_t>(item.row)];
        const Scratch memory = scratch_at(scratch, job.vocab, thread);
        for (int i = item.index; i < item.index + item.count; ++i) {
            const std::int32_t token = sample_position(job, kernels, parallel, row, i, memory);
            job.tokens[row.first + i] = token;
            if (!row.counts) continue;
            if (token < 0) return;
            row.counts->add(token);
            if (i < row.num_drafts && token != row.drafts[i]) return;
        }
    }
};

std::vector<Item> items_of(const SampleJob& job) {
    std::vector<Item> items;
    for (int r = 0; r < static_cast<int>(job.rows.size()); ++r) {
        const SequenceRow& row = job.rows[static_cast<std::size_t>(r)];
        const int positions = 1 + row.num_drafts, step = row.counts ? positions : 1;
        for (int i = 0; i < positions; i += step) items.push_back({r, i, step});
    }
    return items;
}

std::int32_t accept(const SequenceRow& row, const std::int32_t* tokens) {
    for (int i = 0; i <= row.num_drafts; ++i) {
        const std::int32_t token = tokens[row.first + i];
        if (token < 0) return token;
        if (i == row.num_drafts || token != row.drafts[i]) return i + 1;
    }
    return 0;
}

template <class Job>
void run_rows(const Parallel& parallel, Job& job, int rows) {
    const auto call = [](void* pointer, int index, int thread) { static_cast<Job*>(pointer)->row(index, thread); };
    parallel.run(parallel.pool, call, &job, rows);
}

struct LogProbabilities {
    const Kernels& kernels;
    const float* logits;
    int vocab, count;             // count: 0 for the tokens given
    const std::int32_t* tokens;
    std::int32_t* ids;
    float* out;
    std::byte* scratch;

    void row(int index, int thread) const {
        const float* from = logits + static_cast<std::int64_t>(index) * vocab;
        LogitsRow at(kernels, nullptr, from, vocab, scratch_at(scratch, vocab, thread));
        at.scan();
        const double sum = at.finite() ? kernels.sum_exponentials(from, vocab, at.largest()) : NAN;
        const auto log_probability = [&](std::int32_t id) {
            return static_cast<float>(static_cast<double>(from[id]) - static_cast<double>(at.largest()) -
                                      std::log(sum));
        };
        if (count == 0) {
            out[index] = log_probability(tokens[index]);
            return;
        }
        const Ranked* top = at.finite() ? at.top(count) : nullptr;
        for (int i = 0; i < count; ++i) {
            const std::int32_t id = top ? static_cast<std::int32_t>(0xffffffffu - (top[i].rank & 0xffffffffu)) : 0;
            ids[static_cast<std::int64_t>(index) * count + i] = id;
            out[static_cast<std::int64_t>(index) * count + i] = log_probability(id);
        }
    }
};

}  // namespace

std::size_t sampling_scratch_bytes(int vocab) {
    const std::size_t room = padded(vocab), partitions = static_cast<std::size_t>(partitions_of(vocab));
    const std::size_t bytes = room * (sizeof(Ranked) + 3 * sizeof(float) + sizeof(std::int32_t)) +
                              partitions * (16 * sizeof(float) + sizeof(std::int64_t));
    return (bytes + 63) / 64 * 64;
}

void sample(const Parallel& parallel, const Kernels& kernels, const SampleJob& job, std::byte* scratch) {
    Run run{job, kernels, scratch, items_of(job)};
    const int count = static_cast<int>(run.items.size());
    if (count < parallel.threads) {
        for (int i = 0; i < count; ++i) run.item(i, 0, &parallel);
    } else {
        const auto call = [](void* pointer, int index, int thread) {
            static_cast<Run*>(pointer)->item(index, thread, nullptr);
        };
        parallel.run(parallel.pool, call, &run, count);
    }
    for (std::size_t r = 0; r < job.rows.size(); ++r) job.given[r] = accept(job.rows[r], job.tokens);
}

void log_probabilities(const Parallel& parallel, const Kernels& kernels, const float* logits, int rows, int vocab,
                       const std::int32_t* tokens, float* out, std::byte* scratch) {
    LogProbabilities job{kernels, logits, vocab, 0, tokens, nullptr, out, scratch};
    run_rows(parallel, job, rows);
}

void top_log_probabilities(const Parallel& parallel, const Kernels& kernels, const float* logits, int rows, int vocab,
                           int count, std::int32_t* ids, float* out, std::byte* scratch) {
    LogProbabilities job{kernels, logits, vocab, count, nullptr, ids, out, scratch};
    run_rows(parallel, job, rows);
}

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> x, std::array<std::uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t left = std::uint64_t{0xD2511F53} * x[0], right = std::uint64_t{0xCD9E8D57} * x[2];
        x = {static_cast<std::uint32_t>(right >> 32) ^ x[1] ^ key[0], static_cast<std::uint32_t>(right),
             static_cast<std::uint32_t>(left >> 32) ^ x[3] ^ key[1], static_cast<std::uint32_t>(left)};
        key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
    }
    return x;
}

double uniform(std::uint64_t seed, std::uint32_t choice, std::uint32_t position) {
    const std::array<std::uint32_t, 4> block =
        philox({position, choice, 0, 0}, {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    const std::uint64_t bits = static_cast<std::uint64_t>(block[0]) << 21 ^ block[1] >> 11;
    return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace octavo
