// RMSNorm and rotary position embedding of attention heads on the CPU.
#pragma once

#include <cstdint>

#include "cpu/elements.h"

namespace mixbit::cpu {

struct NormRope {
  int B, T, H, D;
  const void* x;       // [B, T, H, D]
  int64_t strides[4];  // of x, in elements
  Element element;     // of x and y
  const void* weight;  // [D]
  Element weight_element;
  float eps;
  int dims;  // values that turn; value i goes with i + dims/2
  float base, scale;
  const int* offsets;  // [B], or null where `offset` holds for every row
  int offset;
  void* y;  // [B, H, T, D]
};

void norm_rope(const NormRope& p);

}  // namespace mixbit::cpu
