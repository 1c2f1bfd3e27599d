// Units of 64 codes as bytes, for the integer products of any NEON.
//
// The lower half of every register comes from the first 32 codes of the unit, the upper half from
// the last: in a group of 32 each half has its own sum.
#pragma once

#include "cpu/vec_neon.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

static inline int8x16_t load_register(const int8_t* p) {
  return vld1q_s8(p);
}
static inline int16x8_t load_register(const int16_t* p) {
  return vld1q_s16(p);
}

// 64 codes, or 64 integers of x, in lanes as wide as X, the type of those integers.
template <class X>
struct Lanes {
  decltype(load_register(static_cast<const X*>(nullptr))) v[4 * sizeof(X)];

  static Lanes load(const X* p) {
    Lanes lanes;
    for (auto& v : lanes.v) {
      v = load_register(p);
      p += sizeof(v) / sizeof(X);
    }
    return lanes;
  }
};

// Which of a unit's 64 codes unpack_places puts at place i of its four registers.
template <class X>
static constexpr int code_at(X, int bits, int i) {
  const int j = i / 16, half = i % 16 / 8, lane = i % 8;
  switch (bits) {
    case 2:
    case 3:
      return 32 * half + 4 * lane + j;
    case 8:
      return 32 * half + 8 * j + lane;
    default:
      return 32 * half + 16 * (j / 2) + 2 * lane + j % 2;
  }
}

// Of 16 bytes each, those at even places of the 16-bit lanes of both, or those at odd ones.
static inline uint8x16_t low_bytes(uint16x8_t a, uint16x8_t b) {
  return vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
}
static inline uint8x16_t high_bytes(uint16x8_t a, uint16x8_t b) {
  return vuzp2q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
}

// The lower halves of both, or the upper ones.
static inline uint8x16_t lower_halves(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
static inline uint8x16_t upper_halves(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

// Eight words of `together` codes each, the first of which starts `skipped` bytes behind p: the
// codes of the lower half of a word end below bit 8, those of the upper half start there.
template <int bits, int together, int skipped>
MIXBIT_INLINE uint16x8_t words_of(const uint8_t* p) {
  static constexpr auto bit = [](int lane) { return lane * together * bits; };
  static constexpr auto bytes =
      PerLane<uint8_t, 16>::of([](int i) { return skipped + bit(i / 2) / 8 + i % 2; });
  static constexpr auto shifts =
      PerLane<int16_t, 8>::of([](int i) { return 8 - together / 2 * bits - bit(i) % 8; });
  const uint8x16_t words = vqtbl1q_u8(vld1q_u8(p), vld1q_u8(bytes.v));
  return vshlq_u16(vreinterpretq_u16_u8(words), vld1q_s16(shifts.v));
}

// 64 codes. A table look-up gives each 16-bit lane the two bytes that hold its word of two or four
// codes, and a shift by a count per lane brings their middle to the middle of the lane, so that
// bytes, and not words, are left to shift and mask. Loads stay inside the unit.
template <int bits>
MIXBIT_INLINE uint8x16x4_t unpack_places(const uint8_t* unit) {
  const uint8x16_t mask = vdupq_n_u8((1 << bits) - 1);
  uint8x16x4_t out;
  if constexpr (bits == 2) {
    const uint8x16_t v = vld1q_u8(unit);
    out.val[0] = vandq_u8(v, mask);
    out.val[1] = vandq_u8(vshrq_n_u8(v, 2), mask);
    out.val[2] = vandq_u8(vshrq_n_u8(v, 4), mask);
    out.val[3] = vshrq_n_u8(v, 6);
  } else if constexpr (bits == 3) {
    const uint16x8_t first = words_of<3, 4, 0>(unit), last = words_of<3, 4, 4>(unit + 8);
    const uint8x16_t low = low_bytes(first, last), high = high_bytes(first, last);
    out.val[0] = vandq_u8(vshrq_n_u8(low, 2), mask);
    out.val[1] = vshrq_n_u8(low, 5);
    out.val[2] = vandq_u8(high, mask);
    out.val[3] = vandq_u8(vshrq_n_u8(high, 3), mask);
  } else if constexpr (bits == 4) {
    const uint8x16_t first = vld1q_u8(unit), last = vld1q_u8(unit + 16);
    const uint8x16_t lower = lower_halves(first, last), upper = upper_halves(first, last);
    out.val[0] = vandq_u8(lower, mask);
    out.val[1] = vshrq_n_u8(lower, 4);
    out.val[2] = vandq_u8(upper, mask);
    out.val[3] = vshrq_n_u8(upper, 4);
  } else if constexpr (bits == 8) {
    for (int j = 0; j < 2; ++j) {
      const uint8x16_t first = vld1q_u8(unit + 16 * j), last = vld1q_u8(unit + 32 + 16 * j);
      out.val[2 * j] = lower_halves(first, last);
      out.val[2 * j + 1] = upper_halves(first, last);
    }
  } else {
    constexpr int half = 4 * bits, skipped = 16 - 2 * bits;  // of 16 bytes up to a half's end
    const uint16x8_t first[] = {words_of<bits, 2, 0>(unit),
                                words_of<bits, 2, skipped>(unit + half - 16)};
    const uint16x8_t last[] = {words_of<bits, 2, 0>(unit + half),
                               words_of<bits, 2, skipped>(unit + 2 * half - 16)};
    for (int j = 0; j < 2; ++j) {
      out.val[2 * j] = vshrq_n_u8(low_bytes(first[j], last[j]), 8 - bits);
      out.val[2 * j + 1] = vandq_u8(high_bytes(first[j], last[j]), mask);
    }
  }
  return out;
}

// The totals of four groups: one a sum, or one in each half of a sum.
template <class Sums>
static inline float32x4_t totals(const Sums (&a)[4]) {
  return vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(a[0].folded(), a[1].folded()),
                                  vpaddq_s32(a[2].folded(), a[3].folded())));
}
template <class Sums>
static inline float32x4_t totals(const Sums (&a)[2]) {
  return vcvtq_f32_s32(vpaddq_s32(a[0].folded(), a[1].folded()));
}

using Octets = void;  // four groups fill a vector here

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
