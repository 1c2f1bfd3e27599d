// Names of Apple's own library that MLX's bf16_math.h uses. Our kernels must not.
#pragma once
#include "simdgroup.h"

#define __METAL_MAYBE_FAST_MATH__ 0
#define __METAL_FAST_MATH__ 1
#define __METAL_PRECISE_MATH__ 0

#define RUNNER_ALIAS(F)                    \
  inline float __metal_##F(float x, int) { \
    return metal::F(x);                    \
  }
RUNNER_ALIAS(fabs)
RUNNER_ALIAS(acos)
RUNNER_ALIAS(acosh)
RUNNER_ALIAS(asin)
RUNNER_ALIAS(asinh)
RUNNER_ALIAS(atan)
RUNNER_ALIAS(atanh)
RUNNER_ALIAS(ceil)
RUNNER_ALIAS(cos)
RUNNER_ALIAS(cosh)
RUNNER_ALIAS(cospi)
RUNNER_ALIAS(exp)
RUNNER_ALIAS(exp10)
RUNNER_ALIAS(exp2)
RUNNER_ALIAS(floor)
RUNNER_ALIAS(fract)
RUNNER_ALIAS(log)
RUNNER_ALIAS(log10)
RUNNER_ALIAS(log2)
RUNNER_ALIAS(rint)
RUNNER_ALIAS(round)
RUNNER_ALIAS(rsqrt)
RUNNER_ALIAS(sin)
RUNNER_ALIAS(sinh)
RUNNER_ALIAS(sinpi)
RUNNER_ALIAS(sqrt)
RUNNER_ALIAS(tan)
RUNNER_ALIAS(tanh)
RUNNER_ALIAS(tanpi)
RUNNER_ALIAS(trunc)
#undef RUNNER_ALIAS
#define RUNNER_ALIAS(F)                             \
  inline float __metal_##F(float x, float y, int) { \
    return metal::F(x, y);                          \
  }
RUNNER_ALIAS(atan2)
RUNNER_ALIAS(divide)
RUNNER_ALIAS(fdim)
RUNNER_ALIAS(fmod)
RUNNER_ALIAS(pow)
RUNNER_ALIAS(powr)
RUNNER_ALIAS(fmin)
RUNNER_ALIAS(fmax)
#undef RUNNER_ALIAS
#define RUNNER_ALIAS(F, G)                                   \
  inline float __metal_##F(float x, float y, float z, int) { \
    return metal::G(x, y, z);                                \
  }
RUNNER_ALIAS(fma, fma)
RUNNER_ALIAS(fmax3, max3)
RUNNER_ALIAS(fmin3, min3)
RUNNER_ALIAS(fmedian3, median3)
#undef RUNNER_ALIAS
inline float __metal_fma(float x, float y, float z) {
  return metal::fma(x, y, z);
}
inline float __metal_nextafter(float x, float y) {
  return metal::nextafter(x, y);
}
inline float __metal_ldexp(float x, int k, int) {
  return metal::ldexp(x, k);
}
inline float __metal_frexp(float x, RUNNER_THREAD int* e) {
  return metal::frexp(x, *e);
}
inline float __metal_modf(float x, RUNNER_THREAD float* e, int) {
  return metal::modf(x, *e);
}
inline int __metal_ilogb(float x, int) {
  return metal::ilogb(x);
}
inline bool __metal_isnan(float x, int) {
  return metal::isnan(x);
}
inline bool __metal_isinf(float x, int) {
  return metal::isinf(x);
}
inline bool __metal_isfinite(float x, int) {
  return metal::isfinite(x);
}

#define __metal_get_simdgroup_size(x) ushort(32)
#define __metal_simd_broadcast metal::simd_broadcast
#define __metal_simd_shuffle metal::simd_shuffle
#define __metal_simd_shuffle_and_fill_down metal::simd_shuffle_and_fill_down
#define __metal_simd_shuffle_and_fill_up metal::simd_shuffle_and_fill_up
#define __metal_simd_shuffle_down metal::simd_shuffle_down
#define __metal_simd_shuffle_up metal::simd_shuffle_up
#define __metal_simd_shuffle_xor metal::simd_shuffle_xor
#define __metal_simd_shuffle_rotate_down metal::simd_shuffle_rotate_down
#define __metal_simd_shuffle_rotate_up metal::simd_shuffle_rotate_up
#define __metal_simd_max metal::simd_max
#define __metal_simd_min metal::simd_min
#define __metal_simd_sum metal::simd_sum
#define __metal_simd_product metal::simd_product
#define __metal_simd_xor(x) metal::simd_xor(__builtin_bit_cast(uint, x))
#define __metal_simd_prefix_exclusive_sum metal::simd_prefix_exclusive_sum
#define __metal_simd_prefix_inclusive_sum metal::simd_prefix_inclusive_sum
#define __metal_simd_prefix_exclusive_product metal::simd_prefix_exclusive_product
#define __metal_simd_prefix_inclusive_product metal::simd_prefix_inclusive_product
