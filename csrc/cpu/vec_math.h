// Small functions over Vec that several kernels share.
#pragma once

#include "cpu/elements.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

static inline float dot(const float* a, const float* b, int count) {
  Vec sum = Vec::zero();
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    sum = Vec::fma(Vec::load(a + i), Vec::load(b + i), sum);
  }
  float total = sum.sum();
  for (; i < count; ++i) {
    total += a[i] * b[i];
  }
  return total;
}

static inline void scale_row(float* row, int count, float factor) {
  for (int i = 0; i < count; ++i) {
    row[i] *= factor;
  }
}

static inline float sigmoid(float x) {
  return 1.f / (1.f + __builtin_expf(-x));
}

// x · sigmoid(x)
static inline Vec silu(Vec x) {
  return x / (Vec::broadcast(1.f) + exp(x * Vec::broadcast(-1.f)));
}

static inline float silu(float x) {
  return x * sigmoid(x);
}

static inline void store(Vec v, float* p) {
  v.store(p);
}

template <class T>
static inline void store(Vec v, T* p) {
  float values[kLanes];
  v.store(values);
  for (int i = 0; i < kLanes; ++i) {
    store_element(p, element_type(p), i, values[i]);
  }
}

// f of a typed pointer to each of the element types.
template <class F>
static inline void with_element(Element e, const F& f) {
  switch (e) {
    case Element::f32:
      return f(float{});
    case Element::f16:
      return f(half_bits{});
    default:
      return f(bfloat_bits{});
  }
}

// f with a width of packed codes as template argument.
template <class F>
static inline void with_bits(int bits, const F& f) {
  switch (bits) {
    case 2:
      return f.template operator()<2>();
    case 3:
      return f.template operator()<3>();
    case 4:
      return f.template operator()<4>();
    case 5:
      return f.template operator()<5>();
    case 6:
      return f.template operator()<6>();
    default:
      return f.template operator()<8>();
  }
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
