#include "info.h"

#include "cpu/thread_pool.h"
#include "mlx/version.h"

namespace mixbit {

std::string isa() {
  return cpu::kernels().name;
}

int num_threads() {
  return cpu::num_threads();
}

std::string built_for_mlx() {
  return std::to_string(MLX_VERSION_MAJOR) + "." + std::to_string(MLX_VERSION_MINOR) + "." +
         std::to_string(MLX_VERSION_PATCH);
}

}  // namespace mixbit
