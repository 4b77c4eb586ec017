// The variant's only symbol that others name.
#include "gemm.hpp"
#include "sampling.hpp"

#define OCTAVO_STRING2(name) #name
#define OCTAVO_STRING(name) OCTAVO_STRING2(name)

namespace octavo::OCTAVO_VARIANT {

extern const Kernels kernels;
const Kernels kernels = {
    .name = OCTAVO_STRING(OCTAVO_VARIANT),
    .gemm = gemm,
    .quantize_weights = quantize_weights,
    .prepare = prepare,
    .rms_norm = rms_norm,
    .add_norm = add_norm,
    .softcap = softcap,
    .route = route,
    .lora = lora,
    .activate = activate,
    .rope_cache = rope_cache,
    .attention = attention,
    .scan_logits = scan_logits,
    .weigh_logits = weigh_logits,
    .gather_logits = gather_logits,
    .sum_exponentials = sum_exponentials,
};

}  // namespace octavo::OCTAVO_VARIANT
