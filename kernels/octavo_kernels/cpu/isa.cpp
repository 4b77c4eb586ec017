#include "isa.hpp"

#include <cstdlib>
#include <stdexcept>

namespace octavo {

namespace portable {
extern const Kernels kernels;
}
#if defined(OCTAVO_X86_VARIANTS)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512_vnni {
extern const Kernels kernels;
}
namespace avx512_bf16 {
extern const Kernels kernels;
}
#endif

std::vector<const Kernels*> supported_variants() {
    std::vector<const Kernels*> found{&portable::kernels};
#if defined(OCTAVO_X86_VARIANTS)
    // These ask the processor and whether the operating system saves the registers.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (!avx2) return found;
    found.push_back(&avx2::kernels);
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (!avx512) return found;
    found.push_back(&avx512::kernels);
    if (!__builtin_cpu_supports("avx512vnni")) return found;
    found.push_back(&avx512_vnni::kernels);
    if (__builtin_cpu_supports("avx512bf16")) found.push_back(&avx512_bf16::kernels);
#endif
    return found;
}

const Kernels& choose_variant() {
    const std::vector<const Kernels*> found = supported_variants();
    const char* wanted = std::getenv("OCTAVO_CPU_ISA");
    if (wanted == nullptr || *wanted == '\0') return *found.back();
    std::string names;
    for (const Kernels* variant : found) {
        if (wanted == std::string(variant->name)) return *variant;
        names += (names.empty() ? "" : ", ") + std::string(variant->name);
    }
    throw std::runtime_error("OCTAVO_CPU_ISA is " + std::string(wanted) +
                             ", which this machine cannot run or Octavo does not have; use one of " + names +
                             ", or leave it unset for the fastest.");
}

}  // namespace octavo
