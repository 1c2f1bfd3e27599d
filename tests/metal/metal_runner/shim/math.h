// metal_math, metal_common, metal_geometric and metal_relational for float, half and vectors.
// half computes in float and rounds once. `fast` and `precise` are the same functions here.
#pragma once
#include "interface.h"
#include "vectors.h"

namespace runner {
extern "C" {
float expf(float);
float exp2f(float);
float exp10f(float);
float expm1f(float);
float logf(float);
float log2f(float);
float log10f(float);
float log1pf(float);
float sinf(float);
float cosf(float);
float tanf(float);
float asinf(float);
float acosf(float);
float atanf(float);
float sinhf(float);
float coshf(float);
float tanhf(float);
float asinhf(float);
float acoshf(float);
float atanhf(float);
float atan2f(float, float);
float powf(float, float);
float fmodf(float, float);
float ldexpf(float, int);
float frexpf(float, int*);
float modff(float, float*);
float nextafterf(float, float);
int ilogbf(float);
}
RUNNER_ONE_OPERATION float sinpi(float x) {
  return sinf(3.14159265358979323846f * x);
}
RUNNER_ONE_OPERATION float cospi(float x) {
  return cosf(3.14159265358979323846f * x);
}
RUNNER_ONE_OPERATION float tanpi(float x) {
  return tanf(3.14159265358979323846f * x);
}
RUNNER_ONE_OPERATION float rsqrt(float x) {
  return 1.0f / __builtin_sqrtf(x);
}
RUNNER_ONE_OPERATION float sign(float x) {
  return x > 0 ? 1.0f : x < 0 ? -1.0f : x != x ? 0 : x;
}
RUNNER_ONE_OPERATION float fract(float x) {
  float rest = x - __builtin_floorf(x);
  return rest < 1.0f ? rest : 0x1.fffffep-1f;
}
RUNNER_ONE_OPERATION float saturate(float x) {
  return x > 0 ? (x < 1 ? x : 1) : 0;
}  // NaN: 0
RUNNER_ONE_OPERATION float divide(float x, float y) {
  return x / y;
}
inline float difference(float x, float y) {
  return x > y ? x - y : 0.0f;
}
inline float step(float edge, float x) {
  return x < edge ? 0.0f : 1.0f;
}
}  // namespace runner

#define RUNNER_UNARY(M)      \
  M(exp, runner::expf)       \
  M(exp2, runner::exp2f)     \
  M(exp10, runner::exp10f)   \
  M(log, runner::logf)       \
  M(log2, runner::log2f)     \
  M(log10, runner::log10f)   \
  M(sin, runner::sinf)       \
  M(cos, runner::cosf)       \
  M(tan, runner::tanf)       \
  M(asin, runner::asinf)     \
  M(acos, runner::acosf)     \
  M(atan, runner::atanf)     \
  M(sinh, runner::sinhf)     \
  M(cosh, runner::coshf)     \
  M(tanh, runner::tanhf)     \
  M(asinh, runner::asinhf)   \
  M(acosh, runner::acoshf)   \
  M(atanh, runner::atanhf)   \
  M(sinpi, runner::sinpi)    \
  M(cospi, runner::cospi)    \
  M(tanpi, runner::tanpi)    \
  M(sqrt, __builtin_sqrtf)   \
  M(rsqrt, runner::rsqrt)    \
  M(fabs, __builtin_fabsf)   \
  M(ceil, __builtin_ceilf)   \
  M(floor, __builtin_floorf) \
  M(round, __builtin_roundf) \
  M(rint, __builtin_rintf)   \
  M(trunc, __builtin_truncf) \
  M(sign, runner::sign)      \
  M(fract, runner::fract)    \
  M(saturate, runner::saturate)
#define RUNNER_BINARY(M)           \
  M(atan2, runner::atan2f)         \
  M(pow, runner::powf)             \
  M(powr, runner::powf)            \
  M(fmod, runner::fmodf)           \
  M(copysign, __builtin_copysignf) \
  M(fmin, __builtin_fminf)         \
  M(fmax, __builtin_fmaxf)         \
  M(nextafter, runner::nextafterf) \
  M(divide, runner::divide)        \
  M(fdim, runner::difference)      \
  M(step, runner::step)

namespace metal {

// A function of scalars, component by component; a scalar beside a vector is repeated.
#define RUNNER_VECTOR_1(F)           \
  template <class T, int N>          \
  inline auto F(vec<T, N> a) {       \
    vec<decltype(F(T())), N> result; \
    for (int i = 0; i < N; i++)      \
      result.d[i] = F(a.d[i]);       \
    return result;                   \
  }
#define RUNNER_VECTOR_2(F)                                                          \
  template <class T, int N>                                                         \
  inline auto F(vec<T, N> a, vec<T, N> b) {                                         \
    vec<decltype(F(T(), T())), N> result;                                           \
    for (int i = 0; i < N; i++)                                                     \
      result.d[i] = F(a.d[i], b.d[i]);                                              \
    return result;                                                                  \
  }                                                                                 \
  template <class T, int N, class S, class = runner::Require<runner::is_scalar<S>>> \
  inline auto F(vec<T, N> a, S b) {                                                 \
    return F(a, vec<T, N>(T(b)));                                                   \
  }                                                                                 \
  template <class T, int N, class S, class = runner::Require<runner::is_scalar<S>>> \
  inline auto F(S a, vec<T, N> b) {                                                 \
    return F(vec<T, N>(T(a)), b);                                                   \
  }
#define RUNNER_VECTOR_3(F)                                                          \
  template <class T, int N>                                                         \
  inline auto F(vec<T, N> a, vec<T, N> b, vec<T, N> c) {                            \
    vec<T, N> result;                                                               \
    for (int i = 0; i < N; i++)                                                     \
      result.d[i] = F(a.d[i], b.d[i], c.d[i]);                                      \
    return result;                                                                  \
  }                                                                                 \
  template <class T, int N, class S, class = runner::Require<runner::is_scalar<S>>> \
  inline auto F(vec<T, N> a, S b, S c) {                                            \
    return F(a, vec<T, N>(T(b)), vec<T, N>(T(c)));                                  \
  }                                                                                 \
  template <class T, int N, class S, class = runner::Require<runner::is_scalar<S>>> \
  inline auto F(vec<T, N> a, vec<T, N> b, S c) {                                    \
    return F(a, b, vec<T, N>(T(c)));                                                \
  }

#define RUNNER_FUNCTION(F, IMPLEMENTATION) \
  inline float F(float x) {                \
    return IMPLEMENTATION(x);              \
  }                                        \
  inline half F(half x) {                  \
    return half(IMPLEMENTATION(float(x))); \
  }                                        \
  RUNNER_VECTOR_1(F)
RUNNER_UNARY(RUNNER_FUNCTION)
#undef RUNNER_FUNCTION
#define RUNNER_FUNCTION(F, IMPLEMENTATION)           \
  inline float F(float x, float y) {                 \
    return IMPLEMENTATION(x, y);                     \
  }                                                  \
  inline half F(half x, half y) {                    \
    return half(IMPLEMENTATION(float(x), float(y))); \
  }                                                  \
  RUNNER_VECTOR_2(F)
RUNNER_BINARY(RUNNER_FUNCTION)
#undef RUNNER_FUNCTION

inline float ldexp(float x, int k) {
  return runner::ldexpf(x, k);
}
inline half ldexp(half x, int k) {
  return half(runner::ldexpf(float(x), k));
}
inline float frexp(float x, RUNNER_THREAD int& exponent) {
  int e;
  float mantissa = runner::frexpf(x, &e);
  exponent = e;
  return mantissa;
}
inline float modf(float x, RUNNER_THREAD float& whole) {
  float w;
  float rest = runner::modff(x, &w);
  whole = w;
  return rest;
}
inline int ilogb(float x) {
  return runner::ilogbf(x);
}
inline float fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
inline half fma(half a, half b, half c) {  // double holds product and sum, so this rounds once
  return half(double(a) * double(b) + double(c));
}
RUNNER_VECTOR_3(fma)

inline uint without_sign(float x) {
  return __builtin_bit_cast(uint, x) & 0x7fffffffu;
}
inline bool isnan(float x) {
  return without_sign(x) > 0x7f800000u;
}
inline bool isinf(float x) {
  return without_sign(x) == 0x7f800000u;
}
inline bool isfinite(float x) {
  return without_sign(x) < 0x7f800000u;
}
inline bool signbit(float x) {
  return __builtin_bit_cast(uint, x) >> 31;
}
inline bool isnan(half x) {
  return isnan(float(x));
}
inline bool isinf(half x) {
  return isinf(float(x));
}
inline bool isfinite(half x) {
  return isfinite(float(x));
}
inline bool signbit(half x) {
  return signbit(float(x));
}
RUNNER_VECTOR_1(isnan)
RUNNER_VECTOR_1(isinf)
RUNNER_VECTOR_1(isfinite)
RUNNER_VECTOR_1(signbit)

#define RUNNER_COMMON(T)                           \
  inline T abs(T x) {                              \
    return fabs(x);                                \
  }                                                \
  inline T min(T a, T b) {                         \
    return fmin(a, b);                             \
  }                                                \
  inline T max(T a, T b) {                         \
    return fmax(a, b);                             \
  }                                                \
  inline T clamp(T x, T low, T high) {             \
    return fmin(fmax(x, low), high);               \
  }                                                \
  inline T mix(T a, T b, T t) {                    \
    return T(a + T(T(b - a) * t));                 \
  }                                                \
  inline T smoothstep(T a, T b, T x) {             \
    T t = clamp(T((x - a) / (b - a)), T(0), T(1)); \
    return T(t * t * (T(3) - T(2) * t));           \
  }                                                \
  inline T min3(T a, T b, T c) {                   \
    return min(min(a, b), c);                      \
  }                                                \
  inline T max3(T a, T b, T c) {                   \
    return max(max(a, b), c);                      \
  }                                                \
  inline T median3(T a, T b, T c) {                \
    return max(min(a, b), min(max(a, b), c));      \
  }
RUNNER_COMMON(float)
RUNNER_COMMON(half)
#undef RUNNER_COMMON
RUNNER_VECTOR_3(mix)

template <class T, class = runner::Require<runner::is_scalar<T>>>
inline T select(T a, T b, bool which) {
  return which ? b : a;
}
template <class T, int N>
inline vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> which) {
  vec<T, N> result;
  for (int i = 0; i < N; i++)
    result.d[i] = which.d[i] ? b.d[i] : a.d[i];
  return result;
}
inline bool all(bool value) {
  return value;
}
inline bool any(bool value) {
  return value;
}
template <int N>
inline bool all(vec<bool, N> values) {
  bool result = true;
  for (int i = 0; i < N; i++)
    result = result && values.d[i];
  return result;
}
template <int N>
inline bool any(vec<bool, N> values) {
  bool result = false;
  for (int i = 0; i < N; i++)
    result = result || values.d[i];
  return result;
}

template <class T, int N>
inline T dot(vec<T, N> a, vec<T, N> b) {
  T sum = T(a.d[0] * b.d[0]);
  for (int i = 1; i < N; i++)
    sum = T(sum + T(a.d[i] * b.d[i]));
  return sum;
}
template <class T, int N>
inline T length_squared(vec<T, N> a) {
  return dot(a, a);
}
template <class T, int N>
inline T length(vec<T, N> a) {
  return sqrt(dot(a, a));
}
template <class T, int N>
inline vec<T, N> normalize(vec<T, N> a) {
  return a * T(rsqrt(dot(a, a)));
}

}  // namespace metal
