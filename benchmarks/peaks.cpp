// What the machine gives to programs without any of the kernels' duties: bytes multiplied without scales, float32
// multiply-adds on registers, and memory read in order. benchmarks/cpu_kernels.py builds and runs it.
//
//   g++ -O3 -march=native -std=c++20 -pthread benchmarks/peaks.cpp -o peaks && ./peaks THREADS
#include <immintrin.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// The median seconds of `repeat` runs of work(thread, threads) on all threads, after one that warms up.
template <class Work>
double median_seconds(int threads, int repeat, Work work) {
    std::vector<double> times;
    for (int pass = 0; pass <= repeat; ++pass) {
        Clock::time_point begin;
        std::barrier start(threads, [&]() noexcept { begin = Clock::now(); });
        std::vector<std::thread> all;
        for (int thread = 0; thread < threads; ++thread) {
            all.emplace_back([&, thread] {
                start.arrive_and_wait();
                work(thread, threads);
            });
        }
        for (std::thread& one : all) one.join();
        if (pass > 0) times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

template <class T>
T* aligned(std::size_t count) {
    T* data = static_cast<T*>(std::aligned_alloc(4096, (count * sizeof(T) + 4095) / 4096 * 4096));
    std::memset(data, 1, count * sizeof(T));
    return data;
}

#if defined(__AVX512VNNI__)
// rows x 32 sums of K products of bytes: activations [rows][K], weights [K / 4][32][4]
constexpr int ROWS = 8;
void multiply(const std::uint8_t* x, const std::int8_t* weights, int k, std::int32_t* out, int stride) {
    __m512i sum[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_si512();
    for (int i = 0; i < k; i += 4) {
        const __m512i left = _mm512_load_si512(weights + i * 32), right = _mm512_load_si512(weights + i * 32 + 64);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            std::int32_t four;
            std::memcpy(&four, x + r * k + i, 4);
            const __m512i activations = _mm512_set1_epi32(four);
            sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], activations, left);
            sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], activations, right);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        _mm512_storeu_si512(out + r * stride, sum[r][0]);
        _mm512_storeu_si512(out + r * stride + 16, sum[r][1]);
    }
}

void print_vnni(int threads) {
    constexpr int M = 512, N = 3072, K = 576;
    const auto* x = aligned<std::uint8_t>(M * K);
    const auto* weights = aligned<std::int8_t>(N * K);
    auto* out = aligned<std::int32_t>(M * N);
    const double seconds = median_seconds(threads, 9, [&](int thread, int all) {
        for (int times = 0; times < 4; ++times) {
            for (int panel = thread; panel < N / 32; panel += all) {
                for (int row = 0; row < M; row += ROWS)
                    multiply(x + row * K, weights + panel * 32 * K, K, out + row * N + panel * 32, N);
            }
        }
    });
    std::printf("\"vnni_gops\": %.1f, ", 4 * 2.0 * M * N * K / seconds / 1e9);
}
#else
void print_vnni(int) {}
#endif

void print_fp32(int threads) {
    constexpr long ROUNDS = 2000000;
#if defined(__AVX512F__)
    constexpr int LANES = 16;
#else
    constexpr int LANES = 8;
#endif
    typedef float Vector __attribute__((vector_size(LANES * 4)));
    const double seconds = median_seconds(threads, 5, [&](int, int) {
        Vector sums[12];
        for (Vector& sum : sums) sum = Vector{} + 1.0f;
        Vector factor = Vector{} + 0.5f;
        for (long i = 0; i < ROUNDS; ++i) {
            asm volatile("" : "+x"(factor));
#pragma GCC unroll 12
            for (int s = 0; s < 12; ++s) sums[s] = sums[s] * factor + factor;
        }
        Vector total = {};
        for (const Vector& sum : sums) total += sum;
        volatile float kept = total[0];
        (void)kept;
    });
    std::printf("\"fp32_gflops\": %.1f, ", 2.0 * 12 * LANES * ROUNDS * threads / seconds / 1e9);
}

void print_reading(int threads) {
    constexpr std::size_t WORDS = std::size_t{1} << 26;  // 512 MiB
    const auto* data = aligned<std::uint64_t>(WORDS);
    const double seconds = median_seconds(threads, 5, [&](int thread, int all) {
        const std::size_t part = WORDS / static_cast<std::size_t>(all);
        const std::uint64_t* from = data + part * static_cast<std::size_t>(thread);
        std::uint64_t sums[32] = {};
        for (std::size_t i = 0; i + 32 <= part; i += 32) {
            for (std::size_t j = 0; j < 32; ++j) sums[j] += from[i + j];
        }
        volatile std::uint64_t kept = sums[0] + sums[31];
        (void)kept;
    });
    std::printf("\"read_gb_per_s\": %.1f", WORDS * 8 / seconds / 1e9);
}

}  // namespace

int main(int count, char** arguments) {
    const int threads = count > 1 ? std::atoi(arguments[1]) : 1;
    std::printf("{");
    print_vnni(threads);
    print_fp32(threads);
    print_reading(threads);
    std::printf("}\n");
}
