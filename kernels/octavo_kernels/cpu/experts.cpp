#include "experts.hpp"

#include <algorithm>
#include <cstring>

#include "input.hpp"
#include "pack.hpp"

namespace octavo {
namespace {

constexpr int CHUNK = 8;  // rows of an item that copies or adds

// The pieces of one workspace.
class Carver {
public:
    template <class T>
    T* take(std::size_t count) {
        const std::size_t begin = bytes;
        bytes += (count * sizeof(T) + 63) / 64 * 64;
        return base ? reinterpret_cast<T*>(base + begin) : nullptr;
    }
    std::uint8_t* base = nullptr;
    std::size_t bytes = 0;
};

struct Memory {
    Input gathered, activated;  // x once for each expert of a row, the experts' hidden features
    float *hidden, *results;
    std::int32_t *order, *place;  // the row of a gathered row; where a row's choice was gathered to, or -1
    std::int32_t* begins;         // of each expert's gathered rows
    std::uint8_t* scratch;        // [threads, scratch_bytes]
    std::int64_t scratch_bytes;
};

Memory carve(Carver& carver, const Experts& experts, const RoutedRows& routed, int threads) {
    const std::size_t choices = static_cast<std::size_t>(routed.rows) * static_cast<std::size_t>(routed.top_k);
    const auto input = [&](WeightKind kind, int k) {
        const auto columns = static_cast<std::size_t>(k);
        return input_at(kind, choices, columns, carver.take<std::uint8_t>(input_bytes(kind, choices, columns)));
    };
    const WeightKind up = experts.gate_up[0].kind, down = experts.down[0].kind;
    Memory memory;
    memory.gathered = input(up, experts.width);
    memory.hidden = carver.take<float>(choices * static_cast<std::size_t>(experts.features));
    memory.activated = input(down, experts.features);
    memory.results = carver.take<float>(choices * static_cast<std::size_t>(experts.width));
    memory.order = carver.take<std::int32_t>(choices);
    memory.place = carver.take<std::int32_t>(choices);
    memory.begins = carver.take<std::int32_t>(experts.gate_up.size() + 1);
    const int most = routed.rows * routed.top_k;
    memory.scratch_bytes =
        std::max(gemm_scratch_bytes(up, most, experts.width), gemm_scratch_bytes(down, most, experts.features));
    memory.scratch = carver.take<std::uint8_t>(static_cast<std::size_t>(threads * memory.scratch_bytes));
    return memory;
}

// Counting sort of the choices by expert.
void sort_by_expert(const Experts& experts, const RoutedRows& routed, const Memory& memory) {
    const int count = static_cast<int>(experts.gate_up.size()), choices = routed.rows * routed.top_k;
    std::fill(memory.begins, memory.begins + count + 1, 0);
    for (int i = 0; i < choices; ++i)
        if (routed.experts[i] >= 0) ++memory.begins[routed.experts[i] + 1];
    for (int e = 0; e < count; ++e) memory.begins[e + 1] += memory.begins[e];
    for (int i = 0; i < choices; ++i) {
        memory.place[i] = routed.experts[i] < 0 ? -1 : memory.begins[routed.experts[i]]++;
        if (memory.place[i] >= 0) memory.order[memory.place[i]] = i / routed.top_k;
    }
    // Each begin has moved to its end, which is the next one's begin.
    for (int e = count; e > 0; --e) memory.begins[e] = memory.begins[e - 1];
    memory.begins[0] = 0;
}

template <class Item>
void run_items(const Parallel& parallel, int count, const Item& item) {
    auto call = [](void* job, int index, int thread) { (*static_cast<const Item*>(job))(index, thread); };
    parallel.run(parallel.pool, call, const_cast<Item*>(&item), count);
}

// Rows of x, `order` of them or the first ones, as the product wants them.
void convert(const Kernels& kernels, const Parallel& parallel, WeightKind kind, const float* x,
             const std::int32_t* order, const Input& to, int rows, int k) {
    Prepare job{};
    job.x = x;
    job.gather = order;
    job.kind = kind;
    job.rows = rows;
    job.width = k;
    set_input(job, to);
    kernels.prepare(parallel, job);
}

// Runs the items of a product on the thread that calls it.
Parallel serial() {
    auto run = [](void*, void (*item)(void*, int, int), void* job, int count) {
        for (int index = 0; index < count; ++index) item(job, index, 0);
    };
    return {nullptr, 1, run};
}

struct GroupedProduct {
    const std::vector<ExpertMatrix>& matrices;
    const std::int32_t* begins;
    Input input;
    float* out;
    int n, k;
    Gate gate;
    std::uint8_t* scratch;  // [threads, scratch_bytes]
    std::int64_t scratch_bytes;
};

// Each expert's rows by its matrix. An item is some panels of one expert, with all its rows: of the gathered rows none
// waits for another expert's, and weights are read once.
void multiply_grouped(const Kernels& kernels, const Parallel& parallel, const GroupedProduct& all) {
    const bool gated = all.gate != NO_GATE;
    const int features = gated ? all.n / 2 : all.n, wide = gated ? PANEL / 2 : PANEL;
    const int panels = (features + wide - 1) / wide;
    const int count = static_cast<int>(all.matrices.size());
    std::vector<int> active;
    for (int e = 0; e < count; ++e)
        if (all.begins[e] < all.begins[e + 1]) active.push_back(e);
    const int used = static_cast<int>(active.size());
    const int chunk = std::clamp(panels * used / (parallel.threads * 8), 1, panels);
    const int chunks = (panels + chunk - 1) / chunk;
    run_items(parallel, used * chunks, [&](int index, int thread) {
        const int e = active[static_cast<std::size_t>(index / chunks)], panel = index % chunks * chunk;
        const ExpertMatrix& matrix = all.matrices[static_cast<std::size_t>(e)];
        const auto row = static_cast<std::size_t>(all.begins[e]);
        const std::size_t panel_bytes = packed_bytes(matrix.kind, PANEL, static_cast<std::size_t>(all.k));
        Gemm gemm{};
        gemm.kind = matrix.kind;
        gemm.weights = matrix.data + static_cast<std::size_t>(panel) * panel_bytes;
        set_input(gemm, rows_from(all.input, matrix.kind, static_cast<std::size_t>(all.k), row));
        gemm.rows = all.begins[e + 1] - all.begins[e];
        gemm.n = std::min(features - panel * wide, chunk * wide) * (gated ? 2 : 1);
        gemm.k = all.k;
        gemm.epilogue.out = all.out + row * static_cast<std::size_t>(features) + panel * wide;
        gemm.epilogue.out_stride = features;
        gemm.epilogue.gate = all.gate;
        gemm.scratch = all.scratch + thread * all.scratch_bytes;
        kernels.gemm(serial(), gemm);
    });
}

// A row's results times their weights, added in the order of its choices.
void combine(const Parallel& parallel, const RoutedRows& routed, const Memory& memory, int width) {
    run_items(parallel, (routed.rows + CHUNK - 1) / CHUNK, [&](int index, int) {
        for (int row = index * CHUNK; row < std::min(routed.rows, (index + 1) * CHUNK); ++row) {
            const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(width);
            float* out = routed.out + at;
            if (routed.residual == nullptr) {
                std::fill(out, out + width, 0.0f);
            } else if (routed.residual != routed.out) {
                std::memcpy(out, routed.residual + at, static_cast<std::size_t>(width) * 4);
            }
            for (int choice = row * routed.top_k; choice < (row + 1) * routed.top_k; ++choice) {
                if (memory.place[choice] < 0) continue;
                const float* result =
                    memory.results + static_cast<std::size_t>(memory.place[choice]) * static_cast<std::size_t>(width);
                const float weight = routed.weights[choice];
                for (int i = 0; i < width; ++i) out[i] += weight * result[i];
            }
        }
    });
}

}  // namespace

void run_experts(const Kernels& kernels, Pool& pool, const Experts& experts, const RoutedRows& routed) {
    if (routed.rows == 0) return;
    Carver carver;
    const Parallel parallel = pool.parallel();
    carve(carver, experts, routed, parallel.threads);
    carver = {static_cast<std::uint8_t*>(pool.workspace(Pool::EXPERTS, carver.bytes)), 0};
    const Memory memory = carve(carver, experts, routed, parallel.threads);
    const WeightKind up = experts.gate_up[0].kind, down = experts.down[0].kind;
    sort_by_expert(experts, routed, memory);
    const int count = memory.begins[experts.gate_up.size()];
    convert(kernels, parallel, up, routed.x, memory.order, memory.gathered, count, experts.width);
    multiply_grouped(kernels, parallel,
                     {experts.gate_up, memory.begins, memory.gathered, memory.hidden, 2 * experts.features,
                      experts.width, experts.gate, memory.scratch, memory.scratch_bytes});
    convert(kernels, parallel, down, memory.hidden, nullptr, memory.activated, count, experts.features);
    multiply_grouped(kernels, parallel,
                     {experts.down, memory.begins, memory.activated, memory.results, experts.width, experts.features,
                      NO_GATE, memory.scratch, memory.scratch_bytes});
    combine(parallel, routed, memory, experts.width);
}

}  // namespace octavo
