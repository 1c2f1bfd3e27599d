#include "cpu/processor.h"

#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace mixbit::cpu {

#if defined(__aarch64__) && defined(__APPLE__)
static bool has(const char* feature) {
  int value = 0;
  size_t size = sizeof(value);
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

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
#if defined(__APPLE__)
  const bool dotprod = has("hw.optional.arm.FEAT_DotProd");
  const bool i8mm = dotprod && has("hw.optional.arm.FEAT_I8MM");
#else
  const bool dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  const bool i8mm = dotprod && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#endif
  if (i8mm) {
    tables.push_back(&neon_i8mm_kernels());
  }
  if (dotprod) {
    tables.push_back(&neon_dotprod_kernels());
  }
  tables.push_back(&neon_kernels);
#endif
  tables.push_back(&portable_kernels);
  return tables;
}

}  // namespace mixbit::cpu
