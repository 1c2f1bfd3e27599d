#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace mixbit::cpu {

namespace {

// Best first.
std::vector<const Kernels*> usable() {
  std::vector<const Kernels*> tables;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    tables.push_back(&avx2_kernels);
  }
#endif
  tables.push_back(&portable_kernels);
  return tables;
}

const Kernels* choose() {
  const auto tables = usable();
  const char* wanted = std::getenv("MIXBIT_ISA");
  if (wanted == nullptr || *wanted == '\0') {
    return tables.front();
  }
  std::string names;
  for (const Kernels* table : tables) {
    if (std::string(wanted) == table->name) {
      return table;
    }
    names += names.empty() ? table->name : std::string(", ") + table->name;
  }
  throw std::invalid_argument("MIXBIT_ISA=" + std::string(wanted) +
                              " is not available on this processor; it can be one of: " + names +
                              ".");
}

}  // namespace

const Kernels& kernels() {
  static const Kernels* const table = choose();
  return *table;
}

}  // namespace mixbit::cpu
