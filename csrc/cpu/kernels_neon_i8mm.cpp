#define MIXBIT_ISA_NAMESPACE neon_i8mm

#include "cpu/kernels_neon_bytes_impl.h"

namespace mixbit::cpu {

const Kernels& neon_i8mm_kernels() {
  static const Kernels table = neon_i8mm::table("neon_i8mm");
  return table;
}

}  // namespace mixbit::cpu
