// Where the sum of a product goes: what all matmul kernels end with.
#pragma once

#include "cpu/kernels.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

static inline void write(const Matmul& p, int m, int n, float sum) {
  if (p.bias != nullptr) {
    sum += load_element(p.bias, p.bias_element, n);
  }
  const size_t row = p.y_rows == nullptr ? m - p.y_row : p.y_rows[m];
  const size_t at = row * p.y_stride + n - p.y_column;
  if (p.residual != nullptr) {
    sum += load_element(p.residual, p.residual_element, at);
  }
  store_element(p.y, p.y_element, at, sum);
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
