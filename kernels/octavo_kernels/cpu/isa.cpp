#include "isa.hpp"

#if defined(OCTAVO_HAS_AVX512_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <stdexcept>

namespace octavo {

namespace portable {
extern const Kernels kernels;
}
// A build may leave variants out.
#if defined(OCTAVO_HAS_AVX2)
namespace avx2 {
extern const Kernels kernels;
}
#endif
#if defined(OCTAVO_HAS_AVX512)
namespace avx512 {
extern const Kernels kernels;
}
#endif
#if defined(OCTAVO_HAS_AVX512_VNNI)
namespace avx512_vnni {
extern const Kernels kernels;
}
#endif
#if defined(OCTAVO_HAS_AVX512_BF16)
namespace avx512_bf16 {
extern const Kernels kernels;
}
#endif
#if defined(OCTAVO_HAS_AVX512_AMX)
namespace avx512_amx {
extern const Kernels kernels;
}

namespace {

// Whether the operating system lets this process use the tile registers, for which it must be asked: a thread's saved
// state grows by 8 KiB with them. It refuses under some hypervisors, and where a signal stack is too small.
bool may_use_tiles() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool granted = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return granted;
}

bool has_amx() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned BF16 = 1u << 22, TILE = 1u << 24, INT8 = 1u << 25, ALL = BF16 | TILE | INT8;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & ALL) == ALL && may_use_tiles();
}

}  // namespace
#endif

std::vector<const Kernels*> supported_variants() {
    std::vector<const Kernels*> found{&portable::kernels};
#if defined(OCTAVO_X86_VARIANTS)
    // These ask the processor and whether the operating system saves the registers.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (!avx2) return found;
#if defined(OCTAVO_HAS_AVX2)
    found.push_back(&avx2::kernels);
#endif
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (!avx512) return found;
#if defined(OCTAVO_HAS_AVX512)
    found.push_back(&avx512::kernels);
#endif
    if (!__builtin_cpu_supports("avx512vnni")) return found;
#if defined(OCTAVO_HAS_AVX512_VNNI)
    found.push_back(&avx512_vnni::kernels);
#endif
    if (!__builtin_cpu_supports("avx512bf16")) return found;
#if defined(OCTAVO_HAS_AVX512_BF16)
    found.push_back(&avx512_bf16::kernels);
#endif
#if defined(OCTAVO_HAS_AVX512_AMX)
    if (has_amx()) found.push_back(&avx512_amx::kernels);
#endif
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
