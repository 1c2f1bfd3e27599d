// Integer products for any NEON.
#pragma once

#include "cpu/vec_neon_units.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

template <class X>
using Codes = Lanes<X>;
template <class X>
using Inputs = Lanes<X>;

// 4 x int32 of the first 32 codes of a unit, and of the last.
struct Sums {
  int32x4_t first, last;

  static Sums zero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }

  void add_products(const Codes<int16_t>& a, const Inputs<int16_t>& b) {
    for (int j = 0; j < 8; j += 2) {
      first = multiply_add(first, a.v[j], b.v[j]);
      last = multiply_add(last, a.v[j + 1], b.v[j + 1]);
    }
  }
  // Codes of at most 6 bits: the sum of two products fits 16 bits, 2 · 63 · 127 < 2^15.
  void add_products(const Codes<int8_t>& a, const Inputs<int8_t>& b) {
    for (int j = 0; j < 4; j += 2) {
      const int16x8_t low = vmull_s8(vget_low_s8(a.v[j]), vget_low_s8(b.v[j]));
      const int16x8_t high = vmull_high_s8(a.v[j], b.v[j]);
      first = vpadalq_s16(first, vmlal_s8(low, vget_low_s8(a.v[j + 1]), vget_low_s8(b.v[j + 1])));
      last = vpadalq_s16(last, vmlal_high_s8(high, a.v[j + 1], b.v[j + 1]));
    }
  }
  // 4 x int32, the lower two of the first 32 codes.
  int32x4_t folded() const { return vpaddq_s32(first, last); }

 private:
  static int32x4_t multiply_add(int32x4_t sum, int16x8_t a, int16x8_t b) {
    return vmlal_high_s16(vmlal_s16(sum, vget_low_s16(a), vget_low_s16(b)), a, b);
  }
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

template <int bits>
MIXBIT_INLINE void unpack_unit(const uint8_t* unit, Codes<int16_t>& out) {
  const uint8x16x4_t codes = unpack_places<bits>(unit);
  for (int j = 0; j < 4; ++j) {
    out.v[2 * j] = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(codes.val[j])));
    out.v[2 * j + 1] = vreinterpretq_s16_u16(vmovl_high_u8(codes.val[j]));
  }
}

template <int bits>
MIXBIT_INLINE void unpack_unit(const uint8_t* unit, Codes<int8_t>& out) {
  const uint8x16x4_t codes = unpack_places<bits>(unit);
  for (int j = 0; j < 4; ++j) {
    out.v[j] = vreinterpretq_s8_u8(codes.val[j]);
  }
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
