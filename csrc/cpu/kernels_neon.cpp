#define MIXBIT_ISA_NAMESPACE neon

// clang-format off: Vec comes before the kernels that are written over it
#include "cpu/vec_neon_integers.h"
#include "cpu/kernels_impl.h"
// clang-format on

namespace mixbit::cpu {

constinit const Kernels neon_kernels = neon::table("neon");

}  // namespace mixbit::cpu
