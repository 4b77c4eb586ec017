// Which of the compiled variants runs here.
#pragma once
#include <string>
#include <vector>

#include "kernels.hpp"

namespace octavo {

// The variants that this machine can run, the slowest first.
std::vector<const Kernels*> supported_variants();

// The variant named by OCTAVO_CPU_ISA, or else the fastest that this machine can run. Throws std::runtime_error with
// one sentence if the variable names what does not exist or cannot run here.
const Kernels& choose_variant();

}  // namespace octavo
