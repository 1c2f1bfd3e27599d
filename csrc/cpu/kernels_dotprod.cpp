#define MIXBIT_ISA_NAMESPACE dotprod

// clang-format off: Vec comes before the kernels that are written over it
#include "cpu/vec_neon_dotprod.h"
#include "cpu/kernels_impl.h"
// clang-format on

namespace mixbit::cpu {

constinit const Kernels dotprod_kernels = dotprod::table("dotprod");

}  // namespace mixbit::cpu
