// The binding of the CPU kernels. The kernels themselves are compiled once per instruction set and chosen at run time;
// this file holds only what Python sees.
#include <nanobind/nanobind.h>

NB_MODULE(_native, module) {
    module.doc() = "Octavo's CPU kernels";
}
