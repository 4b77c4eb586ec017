// The paged cache and attention, as Python sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "attention_plan.hpp"
#include "binding.hpp"

namespace octavo {

Cache cache_over(const CacheLayout& layout, const CacheBytes& bytes) {
    require(bytes.shape(1) == layout.block_bytes() && bytes.stride(1) == 1 && bytes.stride(0) % 4 == 0,
            "The cache is not [blocks, " + std::to_string(layout.block_bytes()) + "] bytes with contiguous blocks.");
    return {bytes.data(), bytes.stride(0), layout.kind, layout.kv_heads, layout.head_dim};
}

namespace {

void rope_and_cache(Runner& runner, In3 qkv, In2 cos, In2 sin, Slots slots, Out3 q_out, CacheBytes bytes,
                    const CacheLayout& layout, std::optional<In1> q_norm, std::optional<In1> k_norm, float eps) {
    const std::size_t tokens = qkv.shape(0), d = static_cast<std::size_t>(layout.head_dim);
    const auto kv_heads = static_cast<std::size_t>(layout.kv_heads), heads = q_out.shape(1), half = cos.shape(1);
    require_shape(q_out, "q_out", {tokens, heads, d});
    require_shape(qkv, "qkv", {tokens, heads + 2 * kv_heads, d});
    require_shape(cos, "cos", {tokens, half});
    require_shape(sin, "sin", {tokens, half});
    require_shape(slots, "slots", {tokens});
    require(2 * half <= d, "Rotary factors of " + std::to_string(half) + " angles do not fit a head.");
    if (q_norm) require_shape(*q_norm, "q_norm", {d});
    if (k_norm) require_shape(*k_norm, "k_norm", {d});
    const auto room = static_cast<std::int64_t>(bytes.shape(0)) * BLOCK_TOKENS;
    for (std::size_t t = 0; t < tokens; ++t) require(slots.data()[t] < room, "A slot lies outside the cache.");
    const RopeCache job{qkv.data(),
                        data_or_null(q_norm),
                        data_or_null(k_norm),
                        eps,
                        cos.data(),
                        sin.data(),
                        static_cast<int>(half),
                        slots.data(),
                        q_out.data(),
                        static_cast<int>(tokens),
                        static_cast<int>(heads),
                        cache_over(layout, bytes)};
    Call call(runner);
    runner.kernels.rope_cache(call.parallel, job);
}

void paged_attention(Runner& runner, In3 q, CacheBytes bytes, const CacheLayout& layout, Int1 row_offsets,
                     Int1 positions, Int1 context_lengths, Int2 block_tables, float scale, Out3 out, int window,
                     float softcap) {
    const std::size_t tokens = q.shape(0), heads = q.shape(1), d = static_cast<std::size_t>(layout.head_dim);
    require_shape(q, "q", {tokens, heads, d});
    require_shape(out, "out", {tokens, heads, d});
    require_shape(positions, "positions", {tokens});
    require(heads > 0 && heads % static_cast<std::size_t>(layout.kv_heads) == 0,
            "Query heads are a multiple of key/value heads.");
    require(window >= 0, "A window is 0 (none) or a number of tokens.");
    const std::size_t rows = context_lengths.shape(0), max_blocks = block_tables.shape(1);
    require_shape(row_offsets, "row_offsets", {rows + 1});
    require_shape(block_tables, "block_tables", {rows, max_blocks});
    const AttentionPlan plan({positions.data(), row_offsets.data(), context_lengths.data(), block_tables.data(), tokens,
                              rows, max_blocks},
                             window, static_cast<int>(heads) / layout.kv_heads);
    require(plan.blocks_seen <= bytes.shape(0), "A block that a query sees is not in the cache.");
    const Cache cache = cache_over(layout, bytes);
    Call call(runner);
    run_attention(runner, plan, cache, q.data(), scale, softcap, out.data());
}

}  // namespace

void bind_attention(nb::module_& module) {
    nb::class_<CacheLayout>(module, "CacheLayout")
        .def(nb::init<const std::string&, int, int>(), nb::arg("dtype"), nb::arg("kv_heads"), nb::arg("head_dim"))
        .def_prop_ro("block_bytes", &CacheLayout::block_bytes);
    module.def("rope_and_cache", &rope_and_cache, nb::arg("pool"), nb::arg("qkv").noconvert(),
               nb::arg("cos").noconvert(), nb::arg("sin").noconvert(), nb::arg("slots").noconvert(),
               nb::arg("q_out").noconvert(), nb::arg("cache").noconvert(), nb::arg("layout"),
               nb::arg("q_norm").noconvert() = nb::none(), nb::arg("k_norm").noconvert() = nb::none(),
               nb::arg("eps") = 1e-6f);
    module.def("paged_attention", &paged_attention, nb::arg("pool"), nb::arg("q").noconvert(),
               nb::arg("cache").noconvert(), nb::arg("layout"), nb::arg("row_offsets").noconvert(),
               nb::arg("positions").noconvert(), nb::arg("context_lengths").noconvert(),
               nb::arg("block_tables").noconvert(), nb::arg("scale"), nb::arg("out").noconvert(), nb::arg("window") = 0,
               nb::arg("softcap") = 0.0f);
}

}  // namespace octavo
