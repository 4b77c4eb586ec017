// Sampling, as Python sees it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "binding.hpp"
#include "sampling.hpp"

namespace octavo {
namespace {

using Ids64 = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids32 = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IdsOut = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Masks = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IdsOut2 = nb::ndarray<std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Out1 = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Ids>
std::vector<std::int32_t> checked(const Ids& ids, std::size_t vocab) {
    std::vector<std::int32_t> result(ids.shape(0));
    for (std::size_t i = 0; i < result.size(); ++i) {
        const std::int64_t id = ids.data()[i];
        require(id >= 0 && static_cast<std::size_t>(id) < vocab, "A token id is outside the vocabulary.");
        result[i] = static_cast<std::int32_t>(id);
    }
    return result;
}

void make_settings(SamplingSettings* self, int vocab_size, std::uint64_t seed, std::uint32_t choice, bool greedy,
                   float temperature, std::int64_t top_k, double top_p, float min_p, float presence, float frequency,
                   float repetition, std::int64_t min_tokens, Ids64 bias_ids, In1 bias, Ids64 allowed,
                   Ids64 held_back) {
    require_shape(bias, "bias", {bias_ids.shape(0)});
    require(greedy || temperature > 0.0f, "A temperature is above 0.");
    require(min_p <= 1.0f, "min_p is at most 1.");
    const auto vocab = static_cast<std::size_t>(vocab_size);
    new (self) SamplingSettings{
        seed,       choice,    greedy,     temperature,
        top_k,      top_p,     min_p,      presence,
        frequency,  repetition, min_tokens, checked(bias_ids, vocab),
        {bias.data(), bias.data() + bias.shape(0)}, checked(allowed, vocab), checked(held_back, vocab), vocab_size};
}

void make_counts(TokenCounts* self, int vocab_size, Ids32 tokens, std::size_t num_prompt_tokens) {
    const std::vector<std::int32_t> ids = checked(tokens, static_cast<std::size_t>(vocab_size));
    new (self) TokenCounts();
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (i < num_prompt_tokens) {
            self->see(ids[i]);
        } else {
            self->add(ids[i]);
        }
    }
}

// Each row's settings, counts, and its part of the logits.
std::vector<SequenceRow> rows_of(std::size_t vocab, std::size_t num_logits, const nb::list& settings,
                                 const nb::list& counts, const Ids64& positions, const Ids64& generated,
                                 const Ids32& draft_offsets, const Ids32& drafts) {
    const std::size_t count = nb::len(settings);
    require(nb::len(counts) == count, "There are not as many counts as settings.");
    require_shape(positions, "positions", {count});
    require_shape(generated, "generated", {count});
    require_shape(draft_offsets, "draft_offsets", {count + 1});
    const std::int32_t* offsets = draft_offsets.data();
    require(offsets[0] == 0 && offsets[count] == static_cast<std::int64_t>(drafts.shape(0)),
            "draft_offsets must begin with 0 and end with the number of drafts.");
    require(num_logits == count + drafts.shape(0), "There must be a row of logits for every row and every draft.");
    std::vector<SequenceRow> rows;
    rows.reserve(count);
    for (std::size_t r = 0; r < count; ++r) {
        const auto* of_row = nb::cast<const SamplingSettings*>(settings[r]);
        require(of_row != nullptr && static_cast<std::size_t>(of_row->vocab_size) == vocab,
                "The settings are for another vocabulary.");
        require(offsets[r] <= offsets[r + 1], "draft_offsets must not fall.");
        const nb::handle used = counts[r];
        rows.push_back({of_row, used.is_none() ? nullptr : nb::cast<TokenCounts*>(used), positions.data()[r],
                        generated.data()[r], static_cast<std::int32_t>(r) + offsets[r], offsets[r + 1] - offsets[r],
                        drafts.data() + offsets[r]});
    }
    return rows;
}

std::byte* scratch_for(Runner& runner, int vocab) {
    const std::size_t bytes = static_cast<std::size_t>(runner.pool.threads()) * sampling_scratch_bytes(vocab);
    return static_cast<std::byte*>(runner.pool.workspace(Pool::SCRATCH, bytes));
}

// Give rows what their grammars allow: `first` is each row's first mask, -1 for a row without a grammar.
void set_masks(SampleJob& job, const Masks& masks, const Ids32& first) {
    require_shape(first, "first_masks", {job.rows.size()});
    job.mask_words = static_cast<int>(masks.shape(1));
    for (std::size_t r = 0; r < job.rows.size(); ++r) {
        const std::int64_t mask = first.data()[r];
        if (mask < 0) continue;
        require(mask + 1 + job.rows[r].num_drafts <= static_cast<std::int64_t>(masks.shape(0)),
                "There must be a mask for every row of logits that has one.");
        job.rows[r].masks = reinterpret_cast<const std::uint32_t*>(masks.data()) + mask * job.mask_words;
    }
}

void sample_rows(Runner& runner, In2 logits, const nb::list& settings, const nb::list& counts, Ids64 positions,
                 Ids64 generated, Ids32 draft_offsets, Ids32 drafts, IdsOut tokens, IdsOut given,
                 std::optional<Masks> masks, std::optional<Ids32> first_masks) {
    require(logits.shape(1) > 0, "There are no logits.");
    SampleJob job{logits.data(), static_cast<int>(logits.shape(1)), {}, tokens.data(), given.data()};
    job.rows = rows_of(logits.shape(1), logits.shape(0), settings, counts, positions, generated, draft_offsets, drafts);
    require(masks.has_value() == first_masks.has_value(), "Masks come with the rows they belong to.");
    if (masks) set_masks(job, *masks, *first_masks);
    require_shape(tokens, "tokens", {logits.shape(0)});
    require_shape(given, "given", {job.rows.size()});
    Call call(runner);
    sample(call.parallel, runner.kernels, job, scratch_for(runner, job.vocab));
}

void logprobs(Runner& runner, In2 logits, Ids32 tokens, Out1 out) {
    const std::size_t rows = logits.shape(0), vocab = logits.shape(1);
    require_shape(tokens, "token_ids", {rows});
    require_shape(out, "out", {rows});
    checked(tokens, vocab);
    Call call(runner);
    log_probabilities(call.parallel, runner.kernels, logits.data(), static_cast<int>(rows), static_cast<int>(vocab),
                      tokens.data(), out.data(), scratch_for(runner, static_cast<int>(vocab)));
}

void top_logprobs(Runner& runner, In2 logits, IdsOut2 ids, Out2 out) {
    const std::size_t rows = logits.shape(0), vocab = logits.shape(1), count = ids.shape(1);
    require(count > 0 && count <= vocab, "The number of tokens asked for is between 1 and the vocabulary's size.");
    require_shape(ids, "ids", {rows, count});
    require_shape(out, "out", {rows, count});
    Call call(runner);
    top_log_probabilities(call.parallel, runner.kernels, logits.data(), static_cast<int>(rows),
                          static_cast<int>(vocab), static_cast<int>(count), ids.data(), out.data(),
                          scratch_for(runner, static_cast<int>(vocab)));
}

std::vector<std::uint32_t> philox_block(const std::vector<std::uint32_t>& counter,
                                        const std::vector<std::uint32_t>& key) {
    require(counter.size() == 4 && key.size() == 2, "Philox has a counter of 4 words and a key of 2.");
    const auto block = philox({counter[0], counter[1], counter[2], counter[3]}, {key[0], key[1]});
    return {block.begin(), block.end()};
}

}  // namespace

void bind_sampling(nb::module_& module) {
    nb::class_<SamplingSettings>(module, "Sampling")
        .def("__init__", &make_settings, nb::kw_only(), nb::arg("vocab_size"), nb::arg("seed"), nb::arg("choice"),
             nb::arg("greedy"), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"),
             nb::arg("presence"), nb::arg("frequency"), nb::arg("repetition"), nb::arg("min_tokens"),
             nb::arg("bias_ids"), nb::arg("bias"), nb::arg("allowed"), nb::arg("held_back"));
    nb::class_<TokenCounts>(module, "TokenCounts")
        .def("__init__", &make_counts, nb::arg("vocab_size"), nb::arg("tokens"), nb::arg("num_prompt_tokens"));
    module.def("sample", &sample_rows, nb::arg("pool"), nb::arg("logits").noconvert(), nb::arg("settings"),
               nb::arg("counts"), nb::arg("positions").noconvert(), nb::arg("generated").noconvert(),
               nb::arg("draft_offsets").noconvert(), nb::arg("drafts").noconvert(), nb::arg("tokens").noconvert(),
               nb::arg("given").noconvert(), nb::arg("masks").noconvert() = nb::none(),
               nb::arg("first_masks").noconvert() = nb::none());
    module.def("logprobs", &logprobs, nb::arg("pool"), nb::arg("logits").noconvert(), nb::arg("token_ids").noconvert(),
               nb::arg("out").noconvert());
    module.def("top_logprobs", &top_logprobs, nb::arg("pool"), nb::arg("logits").noconvert(),
               nb::arg("ids").noconvert(), nb::arg("out").noconvert());
    module.def("philox", &philox_block, nb::arg("counter"), nb::arg("key"));
    module.def("uniform", &uniform, nb::arg("seed"), nb::arg("choice"), nb::arg("position"));
}

}  // namespace octavo
