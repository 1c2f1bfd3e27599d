#define MIXBIT_ISA_NAMESPACE portable

// clang-format off: Vec comes before the kernels that are written over it
#include "cpu/vec_portable.h"
#include "cpu/kernels_impl.h"
// clang-format on

namespace mixbit::cpu {

constinit const Kernels portable_kernels = portable::table("portable");

}  // namespace mixbit::cpu
