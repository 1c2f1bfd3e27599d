// Integer products on bytes, for processors with the dot product extension: with x = 256 high + low
// the products with codes are exact in bytes.
#pragma once

#include "cpu/vec_neon.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

// 64 integers of x: of 16 at a time their low bytes, unsigned, and their high bytes, signed, or for
// codes of eight bits raised by 128.
struct Inputs {
  uint8x16_t low[4], high[4];

  static Inputs load(const int16_t* p) {
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(p);
    Inputs inputs;
    for (int j = 0; j < 4; ++j) {
      inputs.low[j] = vld1q_u8(bytes + 32 * j);
      inputs.high[j] = vld1q_u8(bytes + 32 * j + 16);
    }
    return inputs;
  }
};

// Writes the integers of a unit, ordered as the codes are, for Inputs::load.
template <int bits>
static inline void store_inputs(const int16_t* ordered, int16_t* unit) {
  uint8_t* bytes = reinterpret_cast<uint8_t*>(unit);
  for (int j = 0; j < 4; ++j) {
    const uint8x16x2_t split = vld2q_u8(reinterpret_cast<const uint8_t*>(ordered + 16 * j));
    vst1q_u8(bytes + 32 * j, split.val[0]);
    vst1q_u8(bytes + 32 * j + 16, veorq_u8(split.val[1], vdupq_n_u8(bits == 8 ? 0x80 : 0)));
  }
}

struct Codes {
  uint8x16_t v[4];
};

// Codes that do not fit signed bytes, and 128 times the sums of each half of them.
struct WideCodes {
  uint8x16_t v[4];
  int32x4_t excess[2];
};

// Of the first and of the last 32 codes of a unit: 256 high + low.
struct Sums {
  int32x4_t high[2];
  uint32x4_t low[2];

  static Sums zero() {
    return {{vdupq_n_s32(0), vdupq_n_s32(0)}, {vdupq_n_u32(0), vdupq_n_u32(0)}};
  }

  void add_products(const Codes& a, const Inputs& b) {
    for (int j = 0; j < 4; ++j) {
      low[j / 2] = vdotq_u32(low[j / 2], a.v[j], b.low[j]);
      high[j / 2] =
          vdotq_s32(high[j / 2], vreinterpretq_s8_u8(a.v[j]), vreinterpretq_s8_u8(b.high[j]));
    }
  }
  void add_products(const WideCodes& a, const Inputs& b) {
    for (int half = 0; half < 2; ++half) {
      uint32x4_t raised = vreinterpretq_u32_s32(vsubq_s32(high[half], a.excess[half]));
      for (int j = 2 * half; j < 2 * half + 2; ++j) {
        low[half] = vdotq_u32(low[half], a.v[j], b.low[j]);
        raised = vdotq_u32(raised, a.v[j], b.high[j]);
      }
      high[half] = vreinterpretq_s32_u32(raised);
    }
  }
  int32x4_t half(int i) const {
    return vaddq_s32(vshlq_n_s32(high[i], 8), vreinterpretq_s32_u32(low[i]));
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

// Which of a unit's 64 codes unpack_unit puts at place i. Where bytes hold whole codes, each
// register takes those at the same bits.
static constexpr int code_at(int bits, int i) {
  const int half = i / 32, j = i % 32 / 16, lane = i % 16;
  switch (bits) {
    case 2:
      return 32 * half + 4 * (lane % 8) + 2 * j + lane / 8;
    case 4:
      return 32 * half + 2 * lane + j;
    default:
      return i;
  }
}

template <int bits>
MIXBIT_INLINE auto unpack_unit(const uint8_t* unit) {
  Codes out;
  for (int half = 0; half < 2; ++half) {
    const uint8_t* block = unit + 4 * bits * half;
    uint8x16_t* v = out.v + 2 * half;
    if constexpr (bits == 2) {
      const uint8x8_t bytes = vld1_u8(block);
      const int8x16_t shifts = vcombine_s8(vdup_n_s8(0), vdup_n_s8(-2));
      const uint8x16_t both = vshlq_u8(vcombine_u8(bytes, bytes), shifts);
      v[0] = vandq_u8(both, vdupq_n_u8(3));
      v[1] = vandq_u8(vshrq_n_u8(both, 4), vdupq_n_u8(3));
    } else if constexpr (bits == 4) {
      const uint8x16_t bytes = vld1q_u8(block);
      v[0] = vandq_u8(bytes, vdupq_n_u8(15));
      v[1] = vshrq_n_u8(bytes, 4);
    } else {
      const uint8x16x2_t codes = unpack_bytes<bits>(block);
      v[0] = codes.val[0];
      v[1] = codes.val[1];
    }
  }
  if constexpr (bits < 8) {
    return out;
  } else {
    WideCodes wide;
    for (int half = 0; half < 2; ++half) {
      uint32x4_t sum = vdupq_n_u32(0);
      for (int j = 2 * half; j < 2 * half + 2; ++j) {
        wide.v[j] = out.v[j];
        sum = vdotq_u32(sum, out.v[j], vdupq_n_u8(1));
      }
      wide.excess[half] = vreinterpretq_s32_u32(vshlq_n_u32(sum, 7));
    }
    return wide;
  }
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
