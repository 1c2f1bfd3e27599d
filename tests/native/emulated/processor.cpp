// Takes the place of csrc/cpu/processor.cpp where AVX-512 is emulated.
#include "cpu/processor.h"

namespace mixbit::cpu {

std::vector<const Kernels*> usable_kernels() {
  return {&avx2_kernels, &avx512vnni_kernels(), &avx512_kernels, &portable_kernels};
}

}  // namespace mixbit::cpu
