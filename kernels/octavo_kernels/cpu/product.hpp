// A matrix product with all that comes before it: rows gathered, normed and converted to what the weights want.
#pragma once
#include "runner.hpp"

namespace octavo {

// A packed matrix [n, k] with its bias [n], or null.
struct Matrix {
    WeightKind kind;
    const void* data;
    int n, k;
    bool gate_up;
    const float* bias;

    int features() const { return gate_up ? n / 2 : n; }
};

// Columns of a gated product before its gate: whole panels of so many gate features and as many up features.
inline int panel_columns(int features) { return (features + PANEL / 2 - 1) / (PANEL / 2) * PANEL; }

struct Norm {
    const float* weight = nullptr;  // null: no norm
    float eps = 0.0f;
};

struct InputRows {
    const float* x;  // [any, k]
    int count;
    Norm norm{};
    const std::int32_t* gather = nullptr;  // [count], or null for the first rows
};

// out [count, features] = rows · matrixᵀ + bias + residual; out may be x or the residual. The caller holds the pool's
// mutex.
void multiply(Runner& runner, const Matrix& matrix, const InputRows& rows, Gate gate, const float* residual,
              float* out);

}  // namespace octavo
