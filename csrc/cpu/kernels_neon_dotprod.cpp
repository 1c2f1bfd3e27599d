#define MIXBIT_ISA_NAMESPACE neon_dotprod

#include "cpu/kernels_neon_bytes_impl.h"

namespace mixbit::cpu {

const Kernels& neon_dotprod_kernels() {
  static const Kernels table = neon_dotprod::table("neon_dotprod");
  return table;
}

}  // namespace mixbit::cpu
