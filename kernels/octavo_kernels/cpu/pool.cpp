#include "pool.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <new>
#include <stdexcept>

namespace octavo {
namespace {

constexpr std::uint32_t OPEN = 1u << 31, WAITING = 1u << 30;

void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake(std::atomic<std::uint32_t>& word, int count) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spin until done() for at most `microseconds`; says whether it is.
template <class Done>
bool spin_until(int microseconds, Done done) {
    if (microseconds == 0) return done();
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
    do {
        for (int i = 0; i < 32; ++i) {
            if (done()) return true;
            relax();
        }
    } while (std::chrono::steady_clock::now() < end);
    return done();
}

}  // namespace

Pool::Pool(int threads, int spin_us) : threads_(threads), spin_us_(spin_us) {
    if (threads < 1 || threads > 1024) throw std::invalid_argument("A pool has 1 to 1024 threads.");
    if (spin_us < 0 || spin_us > 50) throw std::invalid_argument("A pool's threads spin for 0 to 50 microseconds.");
    shares_ = std::vector<Share>(static_cast<std::size_t>(threads));
    try {
        for (int thread = 1; thread < threads; ++thread) workers_.emplace_back(&Pool::work, this, thread);
    } catch (...) {
        // Fewer threads than wanted could be had; those that run must be joined before the error is told.
        stop_ = true;
        ++epoch_;
        wake(epoch_, INT_MAX);
        for (std::thread& worker : workers_) worker.join();
        throw;
    }
}

Pool::~Pool() {
    stop_ = true;
    ++epoch_;
    wake(epoch_, INT_MAX);
    for (std::thread& worker : workers_) worker.join();
    for (Memory& memory : memory_) std::free(memory.data);
}

Parallel Pool::parallel() {
    auto call = [](void* pool, void (*item)(void*, int, int), void* job, int count) {
        static_cast<Pool*>(pool)->run(item, job, count);
    };
    return {this, threads_, call};
}

void* Pool::workspace(Purpose purpose, std::size_t bytes) {
    Memory& memory = memory_[purpose];
    if (memory.bytes < bytes) {
        const std::size_t rounded = (bytes + bytes / 4 + 63) / 64 * 64;
        std::free(memory.data);
        memory = {std::aligned_alloc(64, rounded), rounded};
        if (memory.data == nullptr) {
            memory.bytes = 0;
            throw std::bad_alloc();
        }
    }
    return memory.data;
}

void Pool::run(void (*item)(void*, int, int), void* job, int count) {
    if (threads_ == 1 || count < 2) {
        for (int index = 0; index < count; ++index) item(job, index, 0);
        return;
    }
    item_ = item;
    job_ = job;
    for (int thread = 0; thread < threads_; ++thread) {
        Share& share = shares_[static_cast<std::size_t>(thread)];
        const auto share_of = [&](int t) { return static_cast<int>(static_cast<std::int64_t>(count) * t / threads_); };
        share.next.store(share_of(thread), std::memory_order_relaxed);
        share.end = share_of(thread + 1);
    }
    state_.store(OPEN, std::memory_order_release);
    epoch_.fetch_add(1);
    if (sleepers_.load() > 0) wake(epoch_, count - 1 < threads_ - 1 ? count - 1 : threads_ - 1);
    drain(0);
    await_workers();
}

void Pool::drain(int thread) {
    // Who has nothing left to do helps the others.
    for (int i = 0; i < threads_; ++i) drain_share((thread + i) % threads_, thread);
}

void Pool::drain_share(int owner, int thread) {
    Share& share = shares_[static_cast<std::size_t>(owner)];
    while (share.next.load(std::memory_order_relaxed) < share.end) {
        const int index = share.next.fetch_add(1, std::memory_order_relaxed);
        if (index < share.end) item_(job_, index, thread);
    }
}

void Pool::await_workers() {
    if (state_.fetch_and(~OPEN, std::memory_order_acq_rel) == OPEN) return;
    if (spin_until(spin_us_, [this] { return state_.load(std::memory_order_acquire) == 0; })) return;
    std::uint32_t state = state_.fetch_or(WAITING, std::memory_order_acq_rel) | WAITING;
    while (state != WAITING) {
        sleep_while(state_, state);
        state = state_.load(std::memory_order_acquire);
    }
    state_.store(0, std::memory_order_relaxed);
}

void Pool::work(int thread) {
    while (true) {
        const std::uint32_t seen = epoch_.load();
        if (stop_.load()) return;
        std::uint32_t state = state_.load(std::memory_order_relaxed);
        while (state & OPEN) {
            if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) continue;
            drain(thread);
            if (state_.fetch_sub(1, std::memory_order_release) == (WAITING | 1)) wake(state_, 1);
            break;
        }
        if (spin_until(spin_us_, [&] { return epoch_.load(std::memory_order_relaxed) != seen; })) continue;
        ++sleepers_;
        while (epoch_.load() == seen) sleep_while(epoch_, seen);
        --sleepers_;
    }
}

}  // namespace octavo
