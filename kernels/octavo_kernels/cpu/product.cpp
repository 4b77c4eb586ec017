#include "product.hpp"

namespace octavo {

void multiply(Runner& runner, const Matrix& matrix, const InputRows& rows, Gate gate, const float* residual,
              float* out) {
    if (rows.count == 0) return;
    const Parallel parallel = runner.pool.parallel();
    const std::size_t values = static_cast<std::size_t>(rows.count) * static_cast<std::size_t>(matrix.k);
    Gemm gemm{};
    gemm.kind = matrix.kind;
    gemm.zero_shift = matrix.zero_shift;
    gemm.weights = matrix.data;
    gemm.rows = rows.count;
    gemm.n = matrix.n;
    gemm.k = matrix.k;
    gemm.epilogue = {out, matrix.features(), residual, matrix.features(), matrix.bias, gate};
    if (matrix.kind == F32 && rows.norm.weight == nullptr && rows.gather == nullptr && rows.x != out) {
        gemm.input = rows.x;
    } else {
        // Of bfloat16 an odd k is padded.
        const std::size_t bytes = matrix.kind == F32    ? values * 4
                                  : matrix.kind == BF16 ? (values + static_cast<std::size_t>(rows.count)) * 2
                                                        : values;
        void* input = runner.pool.workspace(Pool::INPUT, bytes);
        const bool quantised = matrix.kind != F32 && matrix.kind != BF16;
        auto* groups =
            quantised ? static_cast<QuantGroup*>(
                            runner.pool.workspace(Pool::INPUT_GROUPS, values / GROUP * sizeof(QuantGroup)))
                      : nullptr;
        runner.kernels.prepare(parallel, {rows.x, rows.gather, rows.norm.weight, rows.norm.eps, matrix.kind, input,
                                          groups, rows.count, matrix.k});
        gemm.input = input;
        gemm.groups = groups;
    }
    runner.kernels.gemm(parallel, gemm);
}

}  // namespace octavo
