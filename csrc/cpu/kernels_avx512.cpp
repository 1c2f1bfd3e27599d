#define MIXBIT_ISA_NAMESPACE avx512

// clang-format off: Vec comes before the kernels that are written over it
#include "cpu/vec_avx512.h"
#include "cpu/kernels_impl.h"
// clang-format on

namespace mixbit::cpu {

constinit const Kernels avx512_kernels = avx512::table("avx512");

}  // namespace mixbit::cpu
