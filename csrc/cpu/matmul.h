// Schedules products of one x with one or several matrices over threads.
#pragma once

#include <vector>

#include "cpu/kernels.h"

namespace mixbit::cpu {

// One matrix and where its product goes.
struct MatmulPart {
  int N;
  Weights w;
  // Bits that 16-bit x is rounded to beside affine weights: 16, or 8, which weights of at most 6
  // bits and at most kIntegerDirectRows rows heed.
  int activation_bits = 16;
  const void* bias;  // [N] or null
  Element bias_element;
  const void* residual;  // [*, N], added to the product, or null; not with y_rows
  Element residual_element;
  void* y;  // [*, N]
  Element y_element;
};

// Row m of the products uses row x_rows[m] of x and goes to row y_rows[m] of y, where those are
// given.
struct MatmulRequest {
  int M, K;
  const void* x;  // [*, K], rows contiguous
  Element x_element;
  const void* norm;  // [K]: RMSNorm of x with this weight and eps, or null
  Element norm_element;
  float eps;
  const int* x_rows;
  const int* y_rows;
  std::vector<MatmulPart> parts;
  // Two parts of equal N become one product, SiLU(first) · second, written to the first's y.
  bool swiglu;
};

void matmul(const MatmulRequest& request);

}  // namespace mixbit::cpu
