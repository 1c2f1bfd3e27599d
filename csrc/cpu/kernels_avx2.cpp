#define MIXBIT_ISA_NAMESPACE avx2

// clang-format off: Vec comes before the kernels that are written over it
#include "cpu/vec_avx2.h"
#include "cpu/kernels_impl.h"
// clang-format on

namespace mixbit::cpu {

constinit const Kernels avx2_kernels = avx2::table("avx2");

}  // namespace mixbit::cpu
