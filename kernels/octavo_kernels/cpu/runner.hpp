// The pool, the variant that its calls run, and how long they took.
#pragma once
#include <atomic>

#include "isa.hpp"
#include "pool.hpp"

namespace octavo {

struct Runner {
    Runner(int threads, int spin_us) : pool(threads, spin_us), kernels(choose_variant()) {}
    Pool pool;
    const Kernels& kernels;
    std::atomic<double> seconds_inside{0.0};  // written by who holds the pool's mutex
};

}  // namespace octavo
