// Elements of arrays whose type the kernel learns from its parameters, and their conversion.
#pragma once

#include <metal_stdlib>

#include "params.h"

using namespace metal;

#define UNROLL _Pragma("clang loop unroll(full)")

// Stands for the type of an array that is not there.
struct Absent {};

METAL_FUNC float to_float(float v) {
  return v;
}
METAL_FUNC float to_float(half v) {
  return float(v);
}
METAL_FUNC float to_float(bfloat v) {
  return float(v);
}

template <typename E>
METAL_FUNC float value(const device uchar* p, size_t i) {
  return to_float(((const device E*)p)[i]);
}
template <>
METAL_FUNC float value<Absent>(const device uchar* p, size_t i) {
  return 0.0f;
}

// Zeros where it is absent.
struct Array {
  const device uchar* p;
  uint element;  // MixbitElement

  float operator[](size_t i) const {
    return element == kAbsent  ? 0.0f
           : element == kFloat ? value<float>(p, i)
           : element == kHalf  ? value<half>(p, i)
                               : value<bfloat>(p, i);
  }
};

METAL_FUNC void store_element(device uchar* p, uint element, size_t i, float v) {
  if (element == kFloat) {
    ((device float*)p)[i] = v;
  } else if (element == kHalf) {
    ((device half*)p)[i] = half(v);
  } else {
    ((device bfloat*)p)[i] = bfloat(v);
  }
}

METAL_FUNC float silu(float v) {
  return v / (1.0f + exp(-v));
}
