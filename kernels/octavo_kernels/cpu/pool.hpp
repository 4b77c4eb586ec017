// The engine's own threads: few, long-lived, and asleep when there is nothing to do.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels.hpp"

namespace octavo {

// Runs jobs on `threads` threads, of which the caller's is one. A worker waits for the next job by spinning for at most
// `spin_us` microseconds, then in a futex. A job ends when its items are done: a worker that the machine has not run
// meanwhile is not waited for, since it has not joined. Each thread begins with a share of neighbouring items, in
// order, so that it reads on where it was, and then helps the others with theirs.
class Pool {
public:
    Pool(int threads, int spin_us);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return threads_; }
    Parallel parallel();

    // One call at a time uses the pool and its memory.
    std::mutex& mutex() { return mutex_; }

    // Memory that lasts until the next call that asks for the same purpose, 64-byte aligned.
    enum Purpose { INPUT, SCRATCH, PARTIALS, QKV, QUERIES, HIDDEN, PRODUCT, NORMED, EXPERTS, PURPOSES };
    void* workspace(Purpose purpose, std::size_t bytes);

private:
    struct Memory {
        void* data = nullptr;
        std::size_t bytes = 0;
    };

    void run(void (*item)(void*, int, int), void* job, int count);
    void drain(int thread);
    void drain_share(int owner, int thread);
    void work(int thread);
    void await_workers();

    const int threads_, spin_us_;
    std::mutex mutex_;
    Memory memory_[PURPOSES];

    // The job; written only while no worker is in it.
    void (*item_)(void*, int, int) = nullptr;
    void* job_ = nullptr;

    struct alignas(64) Share {
        std::atomic<int> next{0};
        int end = 0;
    };
    std::vector<Share> shares_;                        // of each thread: neighbouring items, which it does in order
    alignas(64) std::atomic<std::uint32_t> state_{0};  // OPEN, WAITING, and how many workers are in the job
    alignas(64) std::atomic<std::uint32_t> epoch_{0};  // changes with every job
    std::atomic<std::uint32_t> sleepers_{0};
    std::atomic<bool> stop_{false};
    std::vector<std::thread> workers_;
};

}  // namespace octavo
