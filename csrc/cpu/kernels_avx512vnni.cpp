#define MIXBIT_ISA_NAMESPACE avx512vnni

// clang-format off: Vec comes before the kernels that are written over it
#include "cpu/vec_avx512.h"
#include "cpu/kernels_impl.h"
// clang-format on

namespace mixbit::cpu {

constinit const Kernels avx512vnni_kernels = avx512vnni::table("avx512vnni");

}  // namespace mixbit::cpu
