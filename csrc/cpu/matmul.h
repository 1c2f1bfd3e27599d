// Schedules one matmul over threads.
#pragma once

#include "cpu/kernels.h"

namespace mixbit::cpu {

// Rows of activations in whatever type the caller has, and the rest of a Matmul. Row m of the
// product uses row x_rows[m] of x when x_rows is given.
struct MatmulRequest {
  int M, N, K;
  const void* x;  // [*, K], rows contiguous
  Element x_element;
  const int* x_rows;
  Weights w;
  const void* bias;  // [N] or null
  Element bias_element;
  void* y;  // [*, N]
  Element y_element;
  const int* y_rows;
};

void matmul(const MatmulRequest& request);

}  // namespace mixbit::cpu
