#include <cstdlib>
#include <stdexcept>
#include <string>

#include "cpu/processor.h"

namespace mixbit::cpu {

namespace {

const Kernels* choose() {
  const auto tables = usable_kernels();
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
