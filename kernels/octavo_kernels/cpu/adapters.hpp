// Low-rank adapters, another one for each row.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.hpp"
#include "pool.hpp"

namespace octavo {

// A matrix of an adapter as files have it: float32, or bfloat16 bits.
struct AdapterMatrix {
    const void* data;
    bool bf16;
};

// An adapter of one projection, in the kernels' layout. Its memory is its own.
class Adapter {
public:
    // a [rank, width], b [columns, rank], row by row.
    Adapter(AdapterMatrix a, AdapterMatrix b, int width, int columns, int rank, float scale);

    LoraAdapter parts() const;
    int width() const { return width_; }
    int columns() const { return columns_; }
    int rank() const { return rank_; }

private:
    std::vector<std::uint8_t> down_, up_;
    bool down_bf16_, up_bf16_;
    int width_, columns_, rank_;
    float scale_;
};

struct AdaptedRows {
    const float* x;             // [rows, width]
    const std::int32_t* index;  // [rows], which adapter; below 0: none
    int rows;
    float* out;  // [rows], columns of each, out_stride floats apart
    std::int64_t out_stride;
};

// out[row] += scale * (x[row] · aᵀ) · bᵀ of the row's adapter, null being one that adds nothing. Rows without one cost
// nothing; a row's result depends on nothing but the row and its adapter. The adapters are of one shape but for their
// ranks. The caller holds the pool's mutex.
void run_adapters(const Kernels& kernels, Pool& pool, const std::vector<const Adapter*>& adapters,
                  const AdaptedRows& adapted);

}  // namespace octavo
