// metal_integer, and the functions that integers and floats share.
#pragma once
#include "math.h"

namespace metal {

#define RUNNER_INTEGER(T)                                                              \
  inline T min(T a, T b) {                                                             \
    return b < a ? b : a;                                                              \
  }                                                                                    \
  inline T max(T a, T b) {                                                             \
    return a < b ? b : a;                                                              \
  }                                                                                    \
  inline T clamp(T x, T low, T high) {                                                 \
    return min(max(x, low), high);                                                     \
  }                                                                                    \
  inline T popcount(T x) {                                                             \
    return T(__builtin_popcountl(make_unsigned_t<T>(x)));                              \
  }                                                                                    \
  inline T clz(T x) {                                                                  \
    constexpr int unused = 64 - 8 * int(sizeof(T));                                    \
    ulong u = make_unsigned_t<T>(x);                                                   \
    return T(u ? __builtin_clzl(u) - unused : 64 - unused);                            \
  }                                                                                    \
  inline T ctz(T x) {                                                                  \
    ulong u = make_unsigned_t<T>(x);                                                   \
    return T(u ? __builtin_ctzl(u) : 8 * int(sizeof(T)));                              \
  }                                                                                    \
  inline T rotate(T x, T count) {                                                      \
    typedef make_unsigned_t<T> U;                                                      \
    constexpr int bits = 8 * int(sizeof(T));                                           \
    int left = int(U(count)) & (bits - 1);                                             \
    return T(U(U(x) << left) | U(U(x) >> ((bits - left) & (bits - 1))));               \
  }                                                                                    \
  inline T reverse_bits(T x) {                                                         \
    constexpr int bits = 8 * int(sizeof(T));                                           \
    ulong result = 0;                                                                  \
    for (int i = 0; i < bits; i++)                                                     \
      result |= ((ulong(x) >> i) & 1) << (bits - 1 - i);                               \
    return T(result);                                                                  \
  }                                                                                    \
  inline T extract_bits(T x, uint offset, uint count) {                                \
    constexpr uint bits = 8 * uint(sizeof(T));                                         \
    if (!count)                                                                        \
      return 0;                                                                        \
    return T(T(make_unsigned_t<T>(x) << (bits - count - offset)) >> (bits - count));   \
  }                                                                                    \
  inline T insert_bits(T base, T insert, uint offset, uint count) {                    \
    typedef make_unsigned_t<T> U;                                                      \
    if (!count)                                                                        \
      return base;                                                                     \
    U mask = U(U(~U(0)) >> (8 * sizeof(T) - count)) << offset;                         \
    return T((U(base) & U(~mask)) | (U(U(insert) << offset) & mask));                  \
  }                                                                                    \
  inline T mulhi(T a, T b) {                                                           \
    return T((__int128(a) * __int128(b)) >> (8 * sizeof(T)));                          \
  }                                                                                    \
  inline make_unsigned_t<T> absdiff(T a, T b) {                                        \
    return a < b ? b - a : a - b;                                                      \
  }                                                                                    \
  inline T addsat(T a, T b) {                                                          \
    T sum;                                                                             \
    bool over = __builtin_add_overflow(a, b, &sum);                                    \
    return !over ? sum : b < 0 ? numeric_limits<T>::min() : numeric_limits<T>::max();  \
  }                                                                                    \
  inline T subsat(T a, T b) {                                                          \
    T rest;                                                                            \
    bool over = __builtin_sub_overflow(a, b, &rest);                                   \
    return !over ? rest : b < 0 ? numeric_limits<T>::max() : numeric_limits<T>::min(); \
  }
RUNNER_INTEGER(char)
RUNNER_INTEGER(int8_t)
RUNNER_INTEGER(uint8_t)
RUNNER_INTEGER(short)
RUNNER_INTEGER(ushort)
RUNNER_INTEGER(int)
RUNNER_INTEGER(uint)
RUNNER_INTEGER(long)
RUNNER_INTEGER(ulong)
#undef RUNNER_INTEGER

#define RUNNER_SIGNED(T)      \
  inline T abs(T x) {         \
    return T(x < 0 ? -x : x); \
  }
RUNNER_SIGNED(char)
RUNNER_SIGNED(int8_t)
RUNNER_SIGNED(short)
RUNNER_SIGNED(int)
RUNNER_SIGNED(long)
#undef RUNNER_SIGNED

inline int mul24(int a, int b) {
  return ((a << 8) >> 8) * ((b << 8) >> 8);
}
inline int mad24(int a, int b, int c) {
  return mul24(a, b) + c;
}

RUNNER_VECTOR_1(abs)
RUNNER_VECTOR_1(popcount)
RUNNER_VECTOR_1(clz)
RUNNER_VECTOR_1(ctz)
RUNNER_VECTOR_1(reverse_bits)
RUNNER_VECTOR_2(min)
RUNNER_VECTOR_2(max)
RUNNER_VECTOR_2(mulhi)
RUNNER_VECTOR_2(absdiff)
RUNNER_VECTOR_3(clamp)

#define RUNNER_USING(F, IMPLEMENTATION) using metal::F;
#define RUNNER_SAME_FUNCTIONS \
  RUNNER_UNARY(RUNNER_USING)  \
  RUNNER_BINARY(RUNNER_USING) \
  using metal::abs;           \
  using metal::clamp;         \
  using metal::fma;           \
  using metal::ldexp;         \
  using metal::max;           \
  using metal::min;           \
  using metal::mix;
namespace precise {
RUNNER_SAME_FUNCTIONS
}
namespace fast {
RUNNER_SAME_FUNCTIONS
}
#undef RUNNER_SAME_FUNCTIONS
#undef RUNNER_USING

}  // namespace metal

#undef RUNNER_UNARY
#undef RUNNER_BINARY
#undef RUNNER_VECTOR_1
#undef RUNNER_VECTOR_2
#undef RUNNER_VECTOR_3
