// Where the sum of a product goes: what all matmul kernels end with.
#pragma once

#include "cpu/kernels.h"
#include "cpu/vec_math.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

constexpr int kRowColumns = 2 * kMaxLanes;  // the most that write_row takes

// y[m, n … n + count) of at most kRowColumns sums: plus bias and residual, rounded once.
static void write_row(const Matmul& p, int m, int n, int count, const float* sums) {
  float values[kRowColumns];
  __builtin_memcpy(values, sums, count * sizeof(float));
  auto add = [&](const void* terms, Element e, size_t first) {
    with_element(e, [&]<class T>(T) {
      for (int i = 0; i < count; ++i) {
        values[i] += to_float(static_cast<const T*>(terms)[first + i]);
      }
    });
  };
  if (p.bias != nullptr) {
    add(p.bias, p.bias_element, n);
  }
  const size_t row = p.y_rows == nullptr ? m - p.y_row : p.y_rows[m];
  const size_t at = row * p.y_stride + n - p.y_column;
  if (p.residual != nullptr) {
    add(p.residual, p.residual_element, at);
  }
  with_element(p.y_element, [&]<class T>(T) {
    T* y = static_cast<T*>(p.y) + at;
    for (int i = 0; i < count; ++i) {
      store_element(y, element_type(y), i, values[i]);
    }
  });
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
