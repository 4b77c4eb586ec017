#include "input.hpp"

namespace octavo {
namespace {

constexpr std::size_t LINE = 64;

std::size_t whole_lines(std::size_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

std::size_t row_bytes(WeightKind kind, std::size_t k) {
    switch (kind) {
        case F32: return k * 4;
        case BF16: return (k + 1) / 2 * 4;
        // An odd number of lines: the sixteen rows of a tile then lie in different sets of the cache.
        default: return (whole_lines(k) / LINE | 1) * LINE;
    }
}

std::size_t count_chunks(std::size_t k) {
    const auto size = static_cast<std::size_t>(chunk_groups(static_cast<int>(k / GROUP)));
    return (k / GROUP + size - 1) / size;
}

// Takes pieces of whole lines.
struct Cut {
    std::uint8_t* memory;
    std::size_t bytes = 0;

    template <class T>
    T* take(std::size_t size) {
        T* piece = memory ? reinterpret_cast<T*>(memory + bytes) : nullptr;
        bytes += whole_lines(size);
        return piece;
    }
};

Input lay_out(Cut& cut, WeightKind kind, std::size_t rows, std::size_t k) {
    Input input;
    if (kind == U8 || kind == U4) {
        const std::size_t bytes = rows * row_bytes(kind, k);
        input.split.stride = static_cast<std::int64_t>(row_bytes(kind, k));
        input.split.low = cut.take<std::int8_t>(bytes);
        input.split.high = cut.take<std::int8_t>(bytes);
        input.split.chunks = cut.take<SplitChunk>(rows * count_chunks(k) * sizeof(SplitChunk));
        return input;
    }
    input.rows = cut.take<std::uint8_t>(rows * row_bytes(kind, k));
    return input;
}

}  // namespace

std::size_t input_bytes(WeightKind kind, std::size_t rows, std::size_t k) {
    Cut cut{nullptr};
    lay_out(cut, kind, rows, k);
    return cut.bytes;
}

Input input_at(WeightKind kind, std::size_t rows, std::size_t k, std::uint8_t* memory) {
    Cut cut{memory};
    return lay_out(cut, kind, rows, k);
}

Input rows_from(const Input& input, WeightKind kind, std::size_t k, std::size_t row) {
    Input rest = input;
    const std::size_t bytes = row * row_bytes(kind, k);
    if (kind == U8 || kind == U4) {
        rest.split.low += bytes;
        rest.split.high += bytes;
        rest.split.chunks += row * count_chunks(k);
        return rest;
    }
    rest.rows = static_cast<std::uint8_t*>(rest.rows) + bytes;
    return rest;
}

void set_input(Gemm& gemm, const Input& input) {
    gemm.input = input.rows;
    gemm.split = input.split;
}

void set_input(Prepare& job, const Input& input) {
    job.input = input.rows;
    job.split = input.split;
}

}  // namespace octavo
