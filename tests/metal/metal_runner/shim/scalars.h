// Scalar types of MSL, bfloat, constants and literals. No standard header is included, so that a
// kernel sees only what MSL offers.
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef float float32_t;
#ifdef __OPENCL_CPP_VERSION__  // half is a word of that language
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#else
typedef _Float16 half;
#endif
struct bfloat;

#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_CONST const

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_huge_valf()
#define MAXFLOAT 3.402823466e+38F
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define HALF_MAX ((half)65504.0f)
#define HALF_MIN ((half)6.103515625e-05f)
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define CHAR_MAX 127
#define UCHAR_MAX 255
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f

// One operation of the GPU that takes several here stays a call when instructions are counted.
#ifdef RUNNER_COUNTED
#define RUNNER_ONE_OPERATION __attribute__((noinline))
#else
#define RUNNER_ONE_OPERATION inline
#endif

namespace runner {

template <class A, class B>
constexpr bool same = false;
template <class A>
constexpr bool same<A, A> = true;

template <class T, class... Of>
constexpr bool one_of = (same<T, Of> || ...);

template <class T>
constexpr bool is_scalar = one_of<T, bool, char, int8_t, uint8_t, short, ushort, int, uint, long,
                                  ulong, long long, unsigned long long, half, float, bfloat>;

template <bool Condition, class T = void>
struct If {};
template <class T>
struct If<true, T> {
  typedef T type;
};
template <bool Condition, class T = void>
using Require = typename If<Condition, T>::type;

RUNNER_ONE_OPERATION constexpr float bfloat_to_float(uint16_t bits) {
  return __builtin_bit_cast(float, uint32_t(bits) << 16);
}

// Rounds to nearest, ties to even.
RUNNER_ONE_OPERATION constexpr uint16_t float_to_bfloat(float value) {
  uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace runner

// Converts to float by itself; a float or a half has to be cast to it. Each operation rounds.
struct bfloat {
  uint16_t bits;

  bfloat() = default;
  template <class S, class = runner::Require<runner::is_scalar<S>>>
  explicit constexpr bfloat(S value) : bits(runner::float_to_bfloat(float(value))) {}
  static constexpr bfloat from_bits(uint16_t bits) {
    bfloat result(0.0f);
    result.bits = bits;
    return result;
  }

  constexpr operator float() const { return runner::bfloat_to_float(bits); }
  constexpr bfloat operator-() const { return from_bits(bits ^ 0x8000); }
  constexpr bfloat operator+() const { return *this; }

#define RUNNER_OPERATOR(op)                                         \
  friend constexpr bfloat operator op(bfloat a, bfloat b) {         \
    return bfloat(float(a) op float(b));                            \
  }                                                                 \
  friend constexpr float operator op(bfloat a, float b) {           \
    return float(a) op b;                                           \
  }                                                                 \
  friend constexpr float operator op(float a, bfloat b) {           \
    return a op float(b);                                           \
  }                                                                 \
  friend constexpr float operator op(bfloat a, half b) {            \
    return float(a) op float(b);                                    \
  }                                                                 \
  friend constexpr float operator op(half a, bfloat b) {            \
    return float(a) op float(b);                                    \
  }                                                                 \
  template <class I, class = runner::Require<runner::is_scalar<I>>> \
  friend constexpr bfloat operator op(bfloat a, I b) {              \
    return bfloat(float(a) op float(bfloat(b)));                    \
  }                                                                 \
  template <class I, class = runner::Require<runner::is_scalar<I>>> \
  friend constexpr bfloat operator op(I a, bfloat b) {              \
    return bfloat(float(bfloat(a)) op float(b));                    \
  }                                                                 \
  template <class S>                                                \
  constexpr bfloat& operator op## = (S b) {                         \
    *this = bfloat(*this op b);                                     \
    return *this;                                                   \
  }
  RUNNER_OPERATOR(+)
  RUNNER_OPERATOR(-)
  RUNNER_OPERATOR(*)
  RUNNER_OPERATOR(/)
#undef RUNNER_OPERATOR

#define RUNNER_OPERATOR(op)                                         \
  friend constexpr bool operator op(bfloat a, bfloat b) {           \
    return float(a) op float(b);                                    \
  }                                                                 \
  template <class I, class = runner::Require<runner::is_scalar<I>>> \
  friend constexpr bool operator op(bfloat a, I b) {                \
    return float(a) op float(b);                                    \
  }                                                                 \
  template <class I, class = runner::Require<runner::is_scalar<I>>> \
  friend constexpr bool operator op(I a, bfloat b) {                \
    return float(a) op float(b);                                    \
  }
  RUNNER_OPERATOR(<)
  RUNNER_OPERATOR(>)
  RUNNER_OPERATOR(<=)
  RUNNER_OPERATOR(>=)
  RUNNER_OPERATOR(==)
  RUNNER_OPERATOR(!=)
#undef RUNNER_OPERATOR

  constexpr bfloat& operator++() { return *this += 1; }
  constexpr bfloat& operator--() { return *this -= 1; }
};
#define BFLT_MAX (bfloat::from_bits(0x7f7f))

constexpr half operator""h(long double value) {
  return half(float(value));
}
constexpr half operator"" H(long double value) {
  return half(float(value));
}
constexpr bfloat operator"" bf(long double value) {
  return bfloat(float(value));
}
constexpr bfloat operator"" BF(long double value) {
  return bfloat(float(value));
}

namespace metal {
using ::bfloat;
}
