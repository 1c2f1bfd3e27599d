#include "cpu/processor.h"

namespace mixbit::cpu {

std::vector<const Kernels*> usable_kernels() {
  std::vector<const Kernels*> tables;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi")) {
    tables.push_back(&avx512vnni_kernels());
  }
  if (avx512) {
    tables.push_back(&avx512_kernels);
  }
  if (avx2) {
    tables.push_back(&avx2_kernels);
  }
#elif defined(__aarch64__)
  tables.push_back(&neon_kernels);
#endif
  tables.push_back(&portable_kernels);
  return tables;
}

}  // namespace mixbit::cpu
