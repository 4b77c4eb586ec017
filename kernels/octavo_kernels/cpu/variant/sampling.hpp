// The passes over a row of logits (see Kernels).
#pragma once
#include "simd.hpp"

namespace octavo::OCTAVO_VARIANT {

Scan scan_logits(const float* logits, int count, float* maxima);
int64_t weigh_logits(const float* logits, int count, float largest, float inverse_temperature, float least,
                     int32_t* weights, int64_t* sums);
int gather_logits(const float* logits, int count, float limit, float* values, int32_t* ids);
double sum_exponentials(const float* logits, int count, float largest);

}  // namespace octavo::OCTAVO_VARIANT
