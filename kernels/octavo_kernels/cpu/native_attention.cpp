// The paged cache and attention, as Python sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <vector>

#include "binding.hpp"

namespace octavo {
namespace {

using CacheBytes = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::device::cpu>;
using Int1 = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int2 = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Slots = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// How one layer's blocks lie in memory.
struct CacheLayout {
    CacheKind kind;
    int kv_heads, head_dim;

    CacheLayout(const std::string& dtype, int kv_heads, int head_dim)
        : kind(dtype == "f32"    ? CACHE_F32
               : dtype == "bf16" ? CACHE_BF16
                                 : CACHE_INT8),
          kv_heads(kv_heads),
          head_dim(head_dim) {
        require(dtype == "f32" || dtype == "bf16" || dtype == "int8",
                "The cache's type is f32, bf16 or int8, not " + dtype + ".");
        require(kv_heads > 0, "A cache has at least one key/value head.");
        require(
            head_dim > 0 && head_dim % 16 == 0 && head_dim <= 512,
            "A head of " + std::to_string(head_dim) + " dimensions is not supported: use a multiple of 16 up to 512.");
    }
    std::size_t block_bytes() const {
        const std::size_t element = kind == CACHE_F32 ? 4 : kind == CACHE_BF16 ? 2 : 1;
        const std::size_t scales = kind == CACHE_INT8 ? 2 * BLOCK_TOKENS * sizeof(float) : 0;
        return static_cast<std::size_t>(kv_heads) *
               (2 * static_cast<std::size_t>(head_dim) * BLOCK_TOKENS * element + scales);
    }
    Cache over(const CacheBytes& bytes) const {
        require(bytes.shape(1) == block_bytes() && bytes.stride(1) == 1 && bytes.stride(0) % 4 == 0,
                "The cache is not [blocks, " + std::to_string(block_bytes()) + "] bytes with contiguous blocks.");
        return {bytes.data(), bytes.stride(0), kind, kv_heads, head_dim};
    }
};

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
                        layout.over(bytes)};
    Call call(runner);
    runner.kernels.rope_cache(call.parallel, job);
}

// Queries of a row are cut into tiles of as many as fill ATTENTION_ROWS with the heads of a group.
std::vector<QueryTile> cut_tiles(const Int1& row_offsets, int group) {
    const int queries = std::max(1, ATTENTION_ROWS / group);
    std::vector<QueryTile> tiles;
    for (std::size_t row = 0; row + 1 < row_offsets.shape(0); ++row) {
        const int end = row_offsets.data()[row + 1];
        for (int begin = row_offsets.data()[row]; begin < end; begin += queries) {
            tiles.push_back({static_cast<std::int32_t>(row), begin, std::min(queries, end - begin)});
        }
    }
    return tiles;
}

// Every block that a row's queries see must be there: a wrong table would read another process's secrets or crash.
void check_tables(const Int1& row_offsets, const Int1& positions, const Int1& contexts, const Int2& tables,
                  std::size_t num_blocks, int window) {
    const std::size_t rows = contexts.shape(0), width = tables.shape(1);
    require_shape(row_offsets, "row_offsets", {rows + 1});
    require_shape(tables, "block_tables", {rows, width});
    require(row_offsets.data()[0] == 0 && row_offsets.data()[rows] == static_cast<int>(positions.shape(0)),
            "row_offsets must begin with 0 and end with the number of tokens.");
    for (std::size_t row = 0; row < rows; ++row) {
        const int begin = row_offsets.data()[row], end = row_offsets.data()[row + 1], context = contexts.data()[row];
        require(begin <= end, "row_offsets must not fall.");
        require(context <= static_cast<std::int64_t>(width) * BLOCK_TOKENS,
                "A context is longer than its block table.");
        int low = context, high = -1;
        for (int t = begin; t < end; ++t) {
            const int last = std::min(positions.data()[t], context - 1);
            low = std::min(low, window && last >= window ? last - window + 1 : 0);
            high = std::max(high, last);
        }
        for (int block = low / BLOCK_TOKENS; block * BLOCK_TOKENS <= high; ++block) {
            const int physical = tables.data()[row * width + static_cast<std::size_t>(block)];
            require(physical >= 0 && static_cast<std::size_t>(physical) < num_blocks,
                    "A block that a query sees is not in the cache.");
        }
    }
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
    check_tables(row_offsets, positions, context_lengths, block_tables, bytes.shape(0), window);
    const int group = static_cast<int>(heads) / layout.kv_heads;
    const std::vector<QueryTile> tiles = cut_tiles(row_offsets, group);
    if (tiles.empty()) return;
    int longest = 1;
    for (std::size_t row = 0; row < context_lengths.shape(0); ++row)
        longest = std::max(longest, context_lengths.data()[row]);

    Attention job{};
    job.q = q.data();
    job.out = out.data();
    job.positions = positions.data();
    job.context_lengths = context_lengths.data();
    job.block_tables = block_tables.data();
    job.max_blocks = static_cast<std::int64_t>(block_tables.shape(1));
    job.tiles = tiles.data();
    job.num_tiles = static_cast<int>(tiles.size());
    job.heads = static_cast<int>(heads);
    job.max_partitions = (longest + PARTITION_TOKENS - 1) / PARTITION_TOKENS;
    job.window = window;
    job.scale = scale;
    job.softcap = softcap;
    job.cache = layout.over(bytes);

    Call call(runner);
    const std::size_t items = tiles.size() * static_cast<std::size_t>(layout.kv_heads) *
                              static_cast<std::size_t>((group + ATTENTION_ROWS - 1) / ATTENTION_ROWS);
    const int threads = runner.pool.threads();
    // With few rows, the threads share a context's partitions.
    job.split = threads > 1 && job.max_partitions > 1 && items < static_cast<std::size_t>(threads) * 4;
    if (job.split) {
        const std::size_t each = static_cast<std::size_t>(ATTENTION_ROWS) * (d + 2) * sizeof(float);
        job.partials = static_cast<float*>(
            runner.pool.workspace(Pool::PARTIALS, items * static_cast<std::size_t>(job.max_partitions) * each));
    }
    // Whole cache lines for each thread.
    job.scratch_stride = (attention_scratch_floats(layout.head_dim) + 15) / 16 * 16;
    const std::size_t floats = static_cast<std::size_t>(threads) * static_cast<std::size_t>(job.scratch_stride);
    job.scratch = static_cast<float*>(runner.pool.workspace(Pool::SCRATCH, floats * sizeof(float)));
    runner.kernels.attention(call.parallel, job);
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
