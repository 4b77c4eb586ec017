#include "adapters.hpp"

#include <algorithm>
#include <cstring>

namespace octavo {
namespace {

std::size_t padded(int columns) { return (static_cast<std::size_t>(columns) + 31) / 32 * 32; }

// Where a column lies in a row of LoraFactor.
std::size_t place_of(std::size_t column, bool bf16) {
    const std::size_t within = column % 32;
    return bf16 ? column - within + within % 16 * 2 + within / 16 : column;
}

// rows of `columns` numbers; element(row, column) counts them in the source.
template <class Element>
std::vector<std::uint8_t> arrange(AdapterMatrix matrix, int rows, int columns, Element element) {
    const std::size_t bytes = matrix.bf16 ? 2 : 4, width = padded(columns);
    std::vector<std::uint8_t> result(static_cast<std::size_t>(rows) * width * bytes);
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
        for (std::size_t column = 0; column < static_cast<std::size_t>(columns); ++column) {
            std::memcpy(result.data() + (row * width + place_of(column, matrix.bf16)) * bytes,
                        static_cast<const std::uint8_t*>(matrix.data) + element(row, column) * bytes, bytes);
        }
    }
    return result;
}

}  // namespace

Adapter::Adapter(AdapterMatrix a, AdapterMatrix b, int width, int columns, int rank, float scale)
    : down_bf16_(a.bf16), up_bf16_(b.bf16), width_(width), columns_(columns), rank_(rank), scale_(scale) {
    const auto k = static_cast<std::size_t>(width), r = static_cast<std::size_t>(rank);
    down_ = arrange(a, rank, width, [k](std::size_t row, std::size_t column) { return row * k + column; });
    up_ = arrange(b, rank, columns, [r](std::size_t row, std::size_t column) { return column * r + row; });
}

LoraAdapter Adapter::parts() const { return {{down_.data(), down_bf16_}, {up_.data(), up_bf16_}, rank_, scale_}; }

void run_adapters(const Kernels& kernels, Pool& pool, const std::vector<const Adapter*>& adapters,
                  const AdaptedRows& adapted) {
    const int count = static_cast<int>(adapters.size());
    // Counting sort of the rows by adapter.
    std::vector<std::int32_t> begins(adapters.size() + 1);
    const auto has_one = [&](int row) {
        return adapted.index[row] >= 0 && adapters[static_cast<std::size_t>(adapted.index[row])] != nullptr;
    };
    for (int row = 0; row < adapted.rows; ++row)
        if (has_one(row)) ++begins[static_cast<std::size_t>(adapted.index[row]) + 1];
    for (std::size_t a = 0; a < adapters.size(); ++a) begins[a + 1] += begins[a];
    const std::int32_t used = begins[adapters.size()];
    if (used == 0) return;
    std::vector<std::int32_t> rows(static_cast<std::size_t>(used)), next(begins);
    for (int row = 0; row < adapted.rows; ++row)
        if (has_one(row)) rows[static_cast<std::size_t>(next[static_cast<std::size_t>(adapted.index[row])]++)] = row;
    std::vector<LoraAdapter> parts;
    std::vector<LoraTile> tiles;
    int most_ranks = 0, width = 0, columns = 0;
    for (int a = 0; a < count; ++a) {
        const std::int32_t begin = begins[static_cast<std::size_t>(a)], end = begins[static_cast<std::size_t>(a) + 1];
        const Adapter* adapter = adapters[static_cast<std::size_t>(a)];
        parts.push_back(adapter ? adapter->parts() : LoraAdapter{});
        if (begin == end) continue;
        most_ranks = std::max(most_ranks, adapter->rank());
        width = adapter->width();
        columns = adapter->columns();
        for (std::int32_t at = begin; at < end; at += LORA_ROWS)
            tiles.push_back({a, at, std::min(LORA_ROWS, end - at)});
    }
    const std::size_t floats = static_cast<std::size_t>(used) * static_cast<std::size_t>(most_ranks);
    auto* ranks = static_cast<float*>(pool.workspace(Pool::SCRATCH, floats * 4));
    kernels.lora(pool.parallel(), {adapted.x, adapted.out, adapted.out_stride, rows.data(), tiles.data(), parts.data(),
                                   ranks, static_cast<int>(tiles.size()), width, columns, most_ranks});
}

}  // namespace octavo
