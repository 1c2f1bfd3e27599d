// Integer products for any NEON.
#pragma once

#include "cpu/vec_neon.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

// 64 codes, or 64 integers of x, in lanes as wide as X, the type of those integers.
template <class X>
struct Codes;

template <>
struct Codes<int16_t> {
  int16x8_t v[8];

  static Codes load(const int16_t* p) {
    Codes codes;
    for (int j = 0; j < 8; ++j) {
      codes.v[j] = vld1q_s16(p + 8 * j);
    }
    return codes;
  }
};

template <>
struct Codes<int8_t> {
  int8x16_t v[4];

  static Codes load(const int8_t* p) {
    Codes codes;
    for (int j = 0; j < 4; ++j) {
      codes.v[j] = vld1q_s8(p + 16 * j);
    }
    return codes;
  }
};

template <class X>
using Inputs = Codes<X>;

// 2 x 4 x int32, of the first and of the last 32 codes of a unit.
struct Sums {
  int32x4_t v[2];

  static Sums zero() { return {{vdupq_n_s32(0), vdupq_n_s32(0)}}; }

  void add_products(const Codes<int16_t>& a, const Inputs<int16_t>& b) {
    for (int j = 0; j < 8; ++j) {
      v[j / 4] = vmlal_s16(v[j / 4], vget_low_s16(a.v[j]), vget_low_s16(b.v[j]));
      v[j / 4] = vmlal_high_s16(v[j / 4], a.v[j], b.v[j]);
    }
  }
  // Codes of at most 6 bits: the sum of two products fits 16 bits, 2 · 63 · 127 < 2^15.
  void add_products(const Codes<int8_t>& a, const Inputs<int8_t>& b) {
    for (int j = 0; j < 4; ++j) {
      const int16x8_t first = vmull_s8(vget_low_s8(a.v[j]), vget_low_s8(b.v[j]));
      v[j / 2] = vpadalq_s16(v[j / 2], vmlal_high_s8(first, a.v[j], b.v[j]));
    }
  }
  int32x4_t half(int i) const { return v[i]; }
};

// 2 kLanes x int32: two sums of each of kLanes columns, of first and of second codes of pairs.
struct ColumnSums {
  int32x4_t v[4];

  static ColumnSums zero() {
    const int32x4_t none = vdupq_n_s32(0);
    return {{none, none, none, none}};
  }
  // Adds w[c][0] x[0] + w[c][1] x[1] to column c.
  void add_pair(const int16_t* w, const int16_t* x) {
    int32_t pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    const int16x4_t inputs = vreinterpret_s16_s32(vdup_n_s32(pair));
    for (int j = 0; j < 4; ++j) {
      v[j] = vmlal_s16(v[j], vld1_s16(w + 4 * j), inputs);
    }
  }
  Vec to_float() const {
    return {{{vcvtq_f32_s32(vpaddq_s32(v[0], v[1])), vcvtq_f32_s32(vpaddq_s32(v[2], v[3]))}}};
  }
};

// The totals of four groups: one a sum, or one in each half of a sum.
static inline float32x4_t totals(const Sums (&a)[4]) {
  return add_across(vaddq_s32(a[0].half(0), a[0].half(1)), vaddq_s32(a[1].half(0), a[1].half(1)),
                    vaddq_s32(a[2].half(0), a[2].half(1)), vaddq_s32(a[3].half(0), a[3].half(1)));
}
static inline float32x4_t totals(const Sums (&a)[2]) {
  return add_across(a[0].half(0), a[0].half(1), a[1].half(0), a[1].half(1));
}

using Octets = void;  // four groups fill a vector here

// Which of a unit's 64 codes unpack_unit puts at place i: they keep their own order here.
template <class X>
static constexpr int code_at(X, int, int i) {
  return i;
}

template <int bits>
MIXBIT_INLINE void unpack_unit(const uint8_t* unit, Codes<int16_t>& out) {
  for (int half = 0; half < 2; ++half) {
    const uint8x16x2_t codes = unpack_bytes<bits>(unit + 4 * bits * half);
    for (int j = 0; j < 2; ++j) {
      out.v[4 * half + 2 * j] = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(codes.val[j])));
      out.v[4 * half + 2 * j + 1] = vreinterpretq_s16_u16(vmovl_high_u8(codes.val[j]));
    }
  }
}

template <int bits>
MIXBIT_INLINE void unpack_unit(const uint8_t* unit, Codes<int8_t>& out) {
  for (int half = 0; half < 2; ++half) {
    const uint8x16x2_t codes = unpack_bytes<bits>(unit + 4 * bits * half);
    out.v[2 * half] = vreinterpretq_s8_u8(codes.val[0]);
    out.v[2 * half + 1] = vreinterpretq_s8_u8(codes.val[1]);
  }
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
