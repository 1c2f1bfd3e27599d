#include "info.h"

#include "cpu/processor.h"
#include "cpu/thread_pool.h"
#include "mlx/version.h"

namespace mixbit {

std::string isa() {
  return cpu::kernels().name;
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const cpu::Kernels* table : cpu::usable_kernels()) {
    names.push_back(table->name);
  }
  return names;
}

int num_threads() {
  return cpu::num_threads();
}

std::string built_for_mlx() {
  return std::to_string(MLX_VERSION_MAJOR) + "." + std::to_string(MLX_VERSION_MINOR) + "." +
         std::to_string(MLX_VERSION_PATCH);
}

}  // namespace mixbit
