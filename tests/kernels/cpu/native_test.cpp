// The kernels without Python, on every variant of this machine, in memory of exactly the size that they may touch: what
// the sanitizers watch. Results are compared with their definition in double precision.
// native_program.py builds it.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "adapters.hpp"
#include "experts.hpp"
#include "input.hpp"
#include "isa.hpp"
#include "pack.hpp"
#include "pool.hpp"
#include "product.hpp"
#include "unpack.hpp"

using namespace octavo;

namespace {

int checks = 0;

void require(bool fine, const char* variant, const std::string& what) {
    ++checks;
    if (fine) return;
    std::fprintf(stderr, "%s: %s is wrong\n", variant, what.c_str());
    std::exit(1);
}

std::mt19937 generator(1);

float number(float low = -1.0f, float high = 1.0f) {
    return std::uniform_real_distribution<float>(low, high)(generator);
}

std::vector<float> numbers(std::size_t count) {
    std::vector<float> result(count);
    for (float& value : result) value = number();
    return result;
}

std::vector<std::uint8_t> bytes_of(const std::vector<float>& values) {
    std::vector<std::uint8_t> result(values.size() * 4);
    if (!values.empty()) std::memcpy(result.data(), values.data(), result.size());
    return result;
}

struct Setting {
    const Kernels& kernels;
    Pool& pool;
};

using Lines = std::unique_ptr<std::uint8_t, decltype(&std::free)>;

Lines lines(std::size_t bytes) { return {static_cast<std::uint8_t*>(std::aligned_alloc(64, bytes)), &std::free}; }

void multiply(const Setting& s, Gemm gemm, const std::vector<float>& x) {
    const auto rows = static_cast<std::size_t>(gemm.rows), k = static_cast<std::size_t>(gemm.k);
    const Lines memory = lines(input_bytes(gemm.kind, rows, k));
    const Input input = input_at(gemm.kind, rows, k, memory.get());
    Prepare job{};
    job.x = x.data();
    job.kind = gemm.kind;
    job.rows = gemm.rows;
    job.width = gemm.k;
    set_input(job, input);
    s.kernels.prepare(s.pool.parallel(), job);
    const Lines scratch = lines(static_cast<std::size_t>(gemm_scratch_bytes(gemm.kind, gemm.rows, gemm.k)));
    gemm.scratch = scratch.get();
    set_input(gemm, input);
    s.kernels.gemm(s.pool.parallel(), gemm);
}

void check_product(const Setting& s, const std::string& target, int rows, int n, int k) {
    const auto columns = static_cast<std::size_t>(k);
    const std::vector<float> x = numbers(static_cast<std::size_t>(rows) * columns),
                             weights = numbers(static_cast<std::size_t>(n) * columns);
    const std::vector<std::uint8_t> source = bytes_of(weights);
    const WeightKind kind = choose_packing("F32", target);
    std::vector<std::uint8_t> packed(packed_bytes(kind, static_cast<std::size_t>(n), columns));
    pack(s.kernels, s.pool.parallel(), "F32", kind, {{source.data(), static_cast<std::size_t>(n), columns * 4}},
         columns, false, packed.data());
    const std::vector<float> bias = numbers(static_cast<std::size_t>(n)),
                             residual = numbers(static_cast<std::size_t>(rows * n));
    std::vector<float> out(static_cast<std::size_t>(rows * n));
    Gemm gemm{kind,   packed.data(), nullptr, {}, rows, n, k, {out.data(), n, residual.data(), n, bias.data(), NO_GATE},
              nullptr};
    multiply(s, gemm, x);
    const double error = target == "F32" ? 1e-5 : target == "INT4" ? 0.12 : 0.02;
    for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < n; ++c) {
            double sum = 0;
            for (int i = 0; i < k; ++i)
                sum += double(x[static_cast<std::size_t>(r * k + i)]) *
                       double(weights[static_cast<std::size_t>(c * k + i)]);
            sum += double(bias[static_cast<std::size_t>(c)]) + double(residual[static_cast<std::size_t>(r * n + c)]);
            require(std::fabs(out[static_cast<std::size_t>(r * n + c)] - sum) < error * std::sqrt(double(k)),
                    s.kernels.name, "the product of " + target);
        }
    }
}

void check_file_formats(const Setting& s) {
    for (const char* source : {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q6_K"}) {
        const std::size_t k = 512, n = 40, row = source_row_bytes(source, k);
        std::vector<std::uint8_t> plane(n * row);  // all zero: all weights are zero
        const WeightKind kind = choose_packing(source, "");
        std::vector<std::uint8_t> packed(packed_bytes(kind, 2 * n + 16, k));
        packed.resize(packed_bytes(kind, 2 * n, k));
        pack(s.kernels, s.pool.parallel(), source, kind, {{plane.data(), n, row}, {plane.data(), n, row}}, k, true,
             packed.data());
        std::vector<float> out(7 * n, 1.0f);
        Gemm gemm{kind,   packed.data(), nullptr, {}, 7, 2 * n, k, {out.data(), n, nullptr, 0, nullptr, GATE_SILU},
                  nullptr};
        multiply(s, gemm, numbers(7 * k));
        for (const float value : out) require(value == 0.0f, s.kernels.name, source);
    }
}

void check_rows(const Setting& s, int rows, int width) {
    const auto size = static_cast<std::size_t>(rows * width);
    const std::vector<float> x = numbers(size), residual = numbers(size),
                             weight = numbers(static_cast<std::size_t>(width));
    std::vector<float> total(size), out(size);
    s.kernels.rms_norm(s.pool.parallel(),
                       {x.data(), residual.data(), weight.data(), total.data(), out.data(), rows, width, 1e-6f});
    for (int r = 0; r < rows; ++r) {
        double squares = 0;
        for (int i = 0; i < width; ++i)
            squares += std::pow(double(x[static_cast<std::size_t>(r * width + i)]) +
                                    double(residual[static_cast<std::size_t>(r * width + i)]),
                                2);
        const double root = std::sqrt(squares / width + 1e-6);
        for (int i = 0; i < width; ++i) {
            const auto at = static_cast<std::size_t>(r * width + i);
            require(std::fabs(out[at] - (double(x[at]) + double(residual[at])) / root *
                                            double(weight[static_cast<std::size_t>(i)])) < 1e-4,
                    s.kernels.name, "the norm");
        }
    }
    const int columns = panel_columns(width);
    const std::vector<float> panels = numbers(static_cast<std::size_t>(rows * columns));
    s.kernels.activate(s.pool.parallel(), {panels.data(), nullptr, GATE_SILU, out.data(), rows, width});
    for (int i = 0; i < rows * width; ++i) {
        const auto at = static_cast<std::size_t>(i / width * columns + i % width / 16 * 32 + i % width % 16);
        const double gate = double(panels[at]), up = double(panels[at + 16]);
        require(std::fabs(out[static_cast<std::size_t>(i)] - gate / (1 + std::exp(-gate)) * up) < 1e-5, s.kernels.name,
                "the activation");
    }
}

// Sequences of the given lengths, whose last `queries` tokens are in the step.
void check_attention(const Setting& s, CacheKind kind, std::vector<int> lengths, int queries, int heads, int kv_heads,
                     int d, int window) {
    const int element = kind == CACHE_F32 ? 4 : kind == CACHE_BF16 ? 2 : 1, group = heads / kv_heads;
    const int block_bytes = kv_heads * (2 * d * BLOCK_TOKENS * element + (kind == CACHE_INT8 ? 128 : 0));
    int blocks = 0, longest = 0;
    for (const int length : lengths) blocks += (length + 15) / 16, longest = std::max(longest, length);
    std::vector<std::uint8_t> memory(static_cast<std::size_t>(blocks * block_bytes), 0xff);
    const Cache cache{memory.data(), block_bytes, kind, kv_heads, d};
    const int width = (longest + 15) / 16, rows = static_cast<int>(lengths.size());
    std::vector<std::int32_t> tables(static_cast<std::size_t>(rows * width), -1), positions, contexts;
    std::vector<QueryTile> tiles;
    std::vector<std::vector<float>> all;
    std::vector<float> q_all;
    int next = blocks, tokens = 0;
    for (int row = 0; row < rows; ++row) {
        const int length = lengths[static_cast<std::size_t>(row)];
        for (int b = 0; b < (length + 15) / 16; ++b) tables[static_cast<std::size_t>(row * width + b)] = --next;
        std::vector<std::int64_t> slots;
        for (int t = 0; t < length; ++t)
            slots.push_back(std::int64_t(tables[static_cast<std::size_t>(row * width + t / 16)]) * 16 + t % 16);
        all.push_back(numbers(static_cast<std::size_t>(length * (heads + 2 * kv_heads) * d)));
        std::vector<float> q(static_cast<std::size_t>(length * heads * d));
        s.kernels.rope_cache(s.pool.parallel(), {all.back().data(), nullptr, nullptr, 0, nullptr, nullptr, 0,
                                                 slots.data(), q.data(), length, heads, cache});
        const int count = std::min(queries, length), each = std::max(1, ATTENTION_ROWS / group);
        for (int i = 0; i < count; i += each) tiles.push_back({row, tokens + i, std::min(each, count - i)});
        for (int t = length - count; t < length; ++t) positions.push_back(t);
        q_all.insert(q_all.end(), q.end() - count * heads * d, q.end());
        contexts.push_back(length);
        tokens += count;
    }
    std::vector<float> out(q_all.size()), again(q_all.size());
    const int slices = (group + ATTENTION_ROWS - 1) / ATTENTION_ROWS, parts = (longest + 255) / 256;
    const std::int64_t stride = attention_scratch_floats(d);
    std::vector<float> scratch(static_cast<std::size_t>(s.pool.threads() * stride));
    std::vector<float> partials(tiles.size() *
                                static_cast<std::size_t>(kv_heads * slices * parts * ATTENTION_ROWS * (d + 2)));
    Attention job{q_all.data(),  out.data(), positions.data(), contexts.data(),
                  tables.data(), width,      tiles.data(),     static_cast<int>(tiles.size()),
                  heads,         nullptr,    nullptr,          0,
                  parts,         false,      window,           0.25f,
                  0.0f,          cache,      nullptr,          scratch.data(),
                  stride};
    s.kernels.attention(s.pool.parallel(), job);
    job.out = again.data();
    job.split = true;
    job.partials = partials.data();
    s.kernels.attention(s.pool.parallel(), job);
    require(out == again, s.kernels.name, "attention in parts");
    const double error = kind == CACHE_F32 ? 1e-4 : 0.03;
    std::size_t at = 0, token = 0;
    for (int row = 0; row < rows; ++row) {
        const int length = lengths[static_cast<std::size_t>(row)];
        const std::vector<float>& x = all[static_cast<std::size_t>(row)];
        auto element_of = [&](int t, int head, int i) {
            return double(x[static_cast<std::size_t>((t * (heads + 2 * kv_heads) + head) * d + i)]);
        };
        for (int t = length - std::min(queries, length); t < length; ++t, ++token) {
            const int first = window && t >= window ? t - window + 1 : 0;
            for (int h = 0; h < heads; ++h) {
                std::vector<double> weights;
                double sum = 0;
                for (int j = first; j <= t; ++j) {
                    double score = 0;
                    for (int i = 0; i < d; ++i) score += element_of(t, h, i) * element_of(j, heads + h / group, i);
                    weights.push_back(std::exp(score * 0.25));
                    sum += weights.back();
                }
                for (int i = 0; i < d; ++i, ++at) {
                    double value = 0;
                    for (int j = first; j <= t; ++j)
                        value += weights[static_cast<std::size_t>(j - first)] *
                                 element_of(j, heads + kv_heads + h / group, i);
                    require(std::fabs(out[at] - value / sum) < error, s.kernels.name, "attention");
                }
            }
        }
    }
}

void check_pool(int threads, int spin_us) {
    Pool pool(threads, spin_us);
    for (int round = 0; round < 3000; ++round) {
        std::vector<int> seen(static_cast<std::size_t>(round % 17));
        auto item = [](void* job, int index, int) { ++static_cast<int*>(job)[index]; };
        pool.parallel().run(&pool, item, seen.data(), static_cast<int>(seen.size()));
        for (const int count : seen) require(count == 1, "pool", "an item's count");
        if (round % 500 == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));  // lets the workers fall asleep
    }
}

// A packed matrix of random weights, and the weights.
struct RandomMatrix {
    std::vector<float> weights;
    std::vector<std::uint8_t> packed;
};

RandomMatrix random_matrix(const Setting& s, const std::string& target, std::size_t n, std::size_t k, bool gate_up) {
    RandomMatrix result{numbers(n * k), {}};
    const std::vector<std::uint8_t> source = bytes_of(result.weights);
    const WeightKind kind = choose_packing("F32", target);
    result.packed.resize(packed_bytes(kind, n, k));
    std::vector<Plane> planes{{source.data(), n, k * 4}};
    if (gate_up) planes = {{source.data(), n / 2, k * 4}, {source.data() + n / 2 * k * 4, n / 2, k * 4}};
    pack(s.kernels, s.pool.parallel(), "F32", kind, planes, k, gate_up, result.packed.data());
    // What products are held to are the weights as stored; rows that are not joined are read back.
    std::vector<std::uint8_t> apart(packed_bytes(kind, n, k));
    pack(s.kernels, s.pool.parallel(), "F32", kind, {{source.data(), n, k * 4}}, k, false, apart.data());
    for (std::size_t row = 0; row < n; ++row)
        unpack_row(kind, apart.data(), k, row, 1.0f, result.weights.data() + row * k);
    return result;
}

double dot(const float* x, const float* y, std::size_t count) {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += double(x[i]) * double(y[i]);
    return sum;
}

void check_experts(const Setting& s, const std::string& target, std::size_t count, std::size_t rows,
                   std::size_t top_k) {
    const std::size_t width = 64, features = 32;
    std::vector<RandomMatrix> ups, downs;
    const WeightKind kind = choose_packing("F32", target);
    for (std::size_t e = 0; e < count; ++e) {
        ups.push_back(random_matrix(s, target, 2 * features, width, true));
        downs.push_back(random_matrix(s, target, width, features, false));
    }
    Experts experts{{}, {}, static_cast<int>(width), static_cast<int>(features), GATE_SILU};
    for (std::size_t e = 0; e < count; ++e) {
        experts.gate_up.push_back({kind, ups[e].packed.data()});
        experts.down.push_back({kind, downs[e].packed.data()});
    }
    std::vector<float> logits = numbers(rows * count), x = numbers(rows * width), weights(rows * top_k);
    std::vector<std::int32_t> chosen(rows * top_k);
    s.kernels.route(s.pool.parallel(), {logits.data(), chosen.data(), weights.data(), static_cast<int>(rows),
                                        static_cast<int>(count), static_cast<int>(top_k), true});
    std::vector<float> out(rows * width);
    run_experts(s.kernels, s.pool, experts,
                {x.data(), chosen.data(), weights.data(), static_cast<int>(rows), static_cast<int>(top_k), nullptr,
                 out.data()});
    const double most_error = target == "F32" ? 1e-3 : target == "BF16" ? 0.2 : 0.9;
    for (std::size_t row = 0; row < rows; ++row) {
        std::vector<double> wanted(width);
        double shares = 0;
        for (std::size_t j = 0; j < top_k; ++j) {
            const auto e = static_cast<std::size_t>(chosen[row * top_k + j]);
            shares += double(weights[row * top_k + j]);
            std::vector<float> hidden(features);
            for (std::size_t f = 0; f < features; ++f) {
                const double gate = dot(&x[row * width], &ups[e].weights[f * width], width);
                hidden[f] = float(gate / (1 + std::exp(-gate)) *
                                  dot(&x[row * width], &ups[e].weights[(features + f) * width], width));
            }
            for (std::size_t i = 0; i < width; ++i) {
                wanted[i] +=
                    double(weights[row * top_k + j]) * dot(hidden.data(), &downs[e].weights[i * features], features);
            }
        }
        require(std::fabs(shares - 1) < 1e-5, s.kernels.name, "the router's choice");
        for (std::size_t i = 0; i < width; ++i)
            require(std::fabs(out[row * width + i] - wanted[i]) < most_error, s.kernels.name,
                    "the experts' sum of " + target);
    }
}

void check_adapters(const Setting& s, std::size_t width, std::size_t columns) {
    const std::size_t rows = 11;
    std::vector<std::vector<float>> down, up;
    std::vector<Adapter> adapters;
    for (const std::size_t rank : {std::size_t(1), std::size_t(9)}) {
        down.push_back(numbers(rank * width));
        up.push_back(numbers(columns * rank));
        adapters.emplace_back(AdapterMatrix{down.back().data(), false}, AdapterMatrix{up.back().data(), false},
                              static_cast<int>(width), static_cast<int>(columns), static_cast<int>(rank), 0.5f);
    }
    const std::vector<float> x = numbers(rows * width), before = numbers(rows * columns);
    std::vector<float> out = before;
    std::vector<std::int32_t> index;
    for (std::size_t row = 0; row < rows; ++row) index.push_back(static_cast<std::int32_t>(row % 3) - 1);
    run_adapters(s.kernels, s.pool, {&adapters[0], &adapters[1]},
                 {x.data(), index.data(), static_cast<int>(rows), out.data(), static_cast<std::int64_t>(columns)});
    for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t c = 0; c < columns; ++c) {
            double wanted = double(before[row * columns + c]);
            if (index[row] >= 0) {
                const auto a = static_cast<std::size_t>(index[row]);
                const auto rank = static_cast<std::size_t>(adapters[a].rank());
                for (std::size_t r = 0; r < rank; ++r)
                    wanted += 0.5 * dot(&x[row * width], &down[a][r * width], width) * double(up[a][c * rank + r]);
            }
            require(std::fabs(out[row * columns + c] - wanted) < 1e-3, s.kernels.name, "an adapted row");
        }
    }
}

void check_variant(const Kernels& kernels) {
    Pool pool(3, 50);
    const Setting s{kernels, pool};
    for (const char* target : {"F32", "BF16", "INT8", "INT4"}) {
        for (const int rows : {1, 2, 5, 13}) {
            for (const int n : {1, 16, 33}) check_product(s, target, rows, n, 96);
        }
    }
    for (const int k : {1, 7, 33}) check_product(s, "F32", 9, 35, k), check_product(s, "BF16", 9, 35, k);
    check_file_formats(s);
    for (const int width : {1, 2, 16, 34, 70}) check_rows(s, 9, width);
    for (const char* target : {"F32", "BF16", "INT8", "INT4"}) {
        check_experts(s, target, 5, 9, 2);
        check_experts(s, target, 17, 1, 3);
    }
    check_adapters(s, 1, 1);
    check_adapters(s, 70, 530);
    for (const CacheKind kind : {CACHE_F32, CACHE_BF16, CACHE_INT8}) {
        check_attention(s, kind, {1, 15, 16, 17, 300}, 3, 6, 2, 32, 0);
        check_attention(s, kind, {40, 530}, 9, 3, 3, 48, 20);
        check_attention(s, kind, {33}, 2, 34, 2, 16, 0);
    }
}

}  // namespace

int main() {
    for (const int threads : {1, 2, 4}) check_pool(threads, 0), check_pool(threads, 50);
    std::string names;
    for (const Kernels* variant : supported_variants()) {
        check_variant(*variant);
        names += (names.empty() ? "" : ", ") + std::string(variant->name);
    }
    std::printf("%d checks on %s; chosen: %s\n", checks, names.c_str(), choose_variant().name);
}
