#include "product.hpp"

#include "input.hpp"

namespace octavo {

void multiply(Runner& runner, const Matrix& matrix, const InputRows& rows, Gate gate, const float* residual,
              float* out) {
    if (rows.count == 0) return;
    const Parallel parallel = runner.pool.parallel();
    const auto count = static_cast<std::size_t>(rows.count), k = static_cast<std::size_t>(matrix.k);
    Gemm gemm{};
    gemm.kind = matrix.kind;
    gemm.weights = matrix.data;
    gemm.rows = rows.count;
    gemm.n = matrix.n;
    gemm.k = matrix.k;
    gemm.epilogue = {out, matrix.features(), residual, matrix.features(), matrix.bias, gate};
    if (matrix.kind == F32 && rows.norm.weight == nullptr && rows.gather == nullptr && rows.x != out) {
        gemm.input = rows.x;
    } else {
        void* memory = runner.pool.workspace(Pool::INPUT, input_bytes(matrix.kind, count, k));
        const Input input = input_at(matrix.kind, count, k, static_cast<std::uint8_t*>(memory));
        Prepare job{};
        job.x = rows.x;
        job.gather = rows.gather;
        job.norm = rows.norm.weight;
        job.eps = rows.norm.eps;
        job.kind = matrix.kind;
        job.rows = rows.count;
        job.width = matrix.k;
        set_input(job, input);
        runner.kernels.prepare(parallel, job);
        set_input(gemm, input);
    }
    const auto scratch = static_cast<std::size_t>(gemm_scratch_bytes(matrix.kind, rows.count, matrix.k));
    gemm.scratch = static_cast<std::uint8_t*>(runner.pool.workspace(Pool::SCRATCH, scratch));
    runner.kernels.gemm(parallel, gemm);
}

}  // namespace octavo
