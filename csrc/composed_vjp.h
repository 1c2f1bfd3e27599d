// Gradients of a primitive through MLX operations that compute the same.
#pragma once

#include <functional>
#include <vector>

#include "mlx/array.h"
#include "mlx/transforms.h"

namespace mixbit {

// The vector-Jacobian products of `composed` (all of a primitive's inputs to its outputs) at
// `primals`, with respect to the inputs that `argnums` names.
inline std::vector<mlx::core::array> composed_vjp(
    const std::function<std::vector<mlx::core::array>(const std::vector<mlx::core::array>&)>&
        composed,
    const std::vector<mlx::core::array>& primals, const std::vector<mlx::core::array>& cotangents,
    const std::vector<int>& argnums) {
  std::vector<mlx::core::array> varied;
  for (int arg : argnums) {
    varied.push_back(primals[arg]);
  }
  auto function = [&](const std::vector<mlx::core::array>& arrays) {
    std::vector<mlx::core::array> inputs = primals;
    for (size_t i = 0; i < argnums.size(); ++i) {
      inputs[argnums[i]] = arrays[i];
    }
    return composed(inputs);
  };
  return mlx::core::vjp(function, varied, cotangents).second;
}

}  // namespace mixbit
