// Eight fp32 lanes in a pair of NEON registers, in the order and with the roundings of vec_avx2.h.
// vec_neon_integers.h adds the integer products.
#pragma once

#include <arm_neon.h>

#include "cpu/elements.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

constexpr int kLanes = 8;

// Eight 16-bit floats as fp32.
static inline float32x4x2_t widen(uint16x8_t v, bfloat_bits) {
  return {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16)),
           vreinterpretq_f32_u32(vshll_high_n_u16(v, 16))}};
}
static inline float32x4x2_t widen(uint16x8_t v, half_bits) {
  const float16x8_t half = vreinterpretq_f16_u16(v);
  return {{vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half)}};
}

struct Vec {
  float32x4x2_t v;

  static Vec zero() { return broadcast(0.f); }
  static Vec broadcast(float s) { return {{{vdupq_n_f32(s), vdupq_n_f32(s)}}}; }
  static Vec load(const float* p) { return {{{vld1q_f32(p), vld1q_f32(p + 4)}}}; }
  static Vec load(const bfloat_bits* p) { return {widen(load_bits(p), bfloat_bits{})}; }
  static Vec load(const half_bits* p) { return {widen(load_bits(p), half_bits{})}; }
  void store(float* p) const {
    vst1q_f32(p, v.val[0]);
    vst1q_f32(p + 4, v.val[1]);
  }

  // a · b + c
  static Vec fma(Vec a, Vec b, Vec c) {
    return {{{vfmaq_f32(c.v.val[0], a.v.val[0], b.v.val[0]),
              vfmaq_f32(c.v.val[1], a.v.val[1], b.v.val[1])}}};
  }
  friend Vec operator*(Vec a, Vec b) {
    return {{{vmulq_f32(a.v.val[0], b.v.val[0]), vmulq_f32(a.v.val[1], b.v.val[1])}}};
  }
  friend Vec operator/(Vec a, Vec b) {
    return {{{vdivq_f32(a.v.val[0], b.v.val[0]), vdivq_f32(a.v.val[1], b.v.val[1])}}};
  }
  friend Vec operator+(Vec a, Vec b) {
    return {{{vaddq_f32(a.v.val[0], b.v.val[0]), vaddq_f32(a.v.val[1], b.v.val[1])}}};
  }

  float sum() const {
    const float32x4_t halves = vaddq_f32(v.val[0], v.val[1]);
    const float32x2_t pairs = vadd_f32(vget_low_f32(halves), vget_high_f32(halves));
    return vget_lane_f32(pairs, 0) + vget_lane_f32(pairs, 1);
  }
  // Of four at once, with the same roundings.
  static Quad sums(const Vec (&a)[4]) {
    auto halves = [](Vec x) { return vaddq_f32(x.v.val[0], x.v.val[1]); };
    auto pairs = [&](Vec x, Vec y) {
      const float64x2_t p = vreinterpretq_f64_f32(halves(x)), q = vreinterpretq_f64_f32(halves(y));
      return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(p, q)),
                       vreinterpretq_f32_f64(vzip2q_f64(p, q)));
    };
    return vpaddq_f32(pairs(a[0], a[1]), pairs(a[2], a[3]));
  }

 private:
  static uint16x8_t load_bits(const void* p) { return vld1q_u16(static_cast<const uint16_t*>(p)); }
};

// e^x as in vec_avx2.h.
static inline float32x4_t exp(float32x4_t x) {
  const float32x4_t low = vdupq_n_f32(-87.33654f);
  const float32x4_t clamped =
      vminq_f32(vdupq_n_f32(88.37626f), vmaxq_f32(low, x));  // hand a NaN on
  const float32x4_t n = vrndnq_f32(vmulq_f32(clamped, vdupq_n_f32(1.44269504f)));
  float32x4_t r = vfmsq_f32(clamped, n, vdupq_n_f32(0.693359375f));
  r = vfmsq_f32(r, n, vdupq_n_f32(-2.12194440e-4f));
  float32x4_t y = vdupq_n_f32(1.9875691500e-4f);
  y = vfmaq_f32(vdupq_n_f32(1.3981999507e-3f), y, r);
  y = vfmaq_f32(vdupq_n_f32(8.3334519073e-3f), y, r);
  y = vfmaq_f32(vdupq_n_f32(4.1665795894e-2f), y, r);
  y = vfmaq_f32(vdupq_n_f32(1.6666665459e-1f), y, r);
  y = vfmaq_f32(vdupq_n_f32(5.0000001201e-1f), y, r);
  y = vfmaq_f32(vaddq_f32(r, vdupq_n_f32(1.f)), vmulq_f32(r, r), y);
  const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
  const float32x4_t value = vmulq_f32(y, vreinterpretq_f32_s32(power));
  const uint32x4_t below = vcltq_f32(x, low);
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), below));
}

static inline Vec exp(Vec x) {
  return {{{exp(x.v.val[0]), exp(x.v.val[1])}}};
}

// ---- codes --------------------------------------------------------------------------------------
// A table look-up gives each 16-bit lane the two bytes that hold its code, and a shift by a count
// per lane brings the code down. Loads stay inside the block: the last one starts early and the
// table makes up for it.

template <class T, int count>
struct alignas(16) PerLane {
  T v[count];

  template <class F>
  static constexpr PerLane of(F f) {
    PerLane r{};
    for (int i = 0; i < count; ++i) {
      r.v[i] = static_cast<T>(f(i));
    }
    return r;
  }
};

// Codes 16 · half and after, as two registers of 16-bit lanes with higher bits above the codes.
template <int bits>
static inline uint16x8x2_t shifted_codes(const uint8_t* block, int half) {
  constexpr int length = 2 * bits;  // bytes of 16 codes
  constexpr int loaded = length <= 8 ? 8 : 16;
  constexpr int second = 2 * length - loaded;  // where the load of the second half starts
  static constexpr auto at = [](int i) { return i / 2 * bits / 8 + i % 2; };
  // An index past the loaded bytes gives zero.
  static constexpr auto first_bytes = PerLane<uint8_t, 32>::of(at);
  static constexpr auto second_bytes =
      PerLane<uint8_t, 32>::of([](int i) { return at(i) + length - second; });
  static constexpr auto shifts = PerLane<int16_t, 8>::of([](int i) { return -(i * bits % 8); });
  const uint8_t* p = block + (half == 0 ? 0 : second);
  const uint8_t* bytes = half == 0 ? first_bytes.v : second_bytes.v;
  uint8x16_t v;
  if constexpr (loaded == 8) {
    v = vcombine_u8(vld1_u8(p), vdup_n_u8(0));
  } else {
    v = vld1q_u8(p);
  }
  auto lanes = [&](int eight) {
    const uint8x16_t pairs = vqtbl1q_u8(v, vld1q_u8(bytes + 16 * eight));
    return vshlq_u16(vreinterpretq_u16_u8(pairs), vld1q_s16(shifts.v));
  };
  return {{lanes(0), lanes(1)}};
}

// 32 codes as bytes.
template <int bits>
static inline uint8x16x2_t unpack_bytes(const uint8_t* block) {
  if constexpr (bits == 8) {
    return {{vld1q_u8(block), vld1q_u8(block + 16)}};
  } else if constexpr (bits == 4) {
    const uint8x16_t v = vld1q_u8(block);
    const uint8x16_t even = vandq_u8(v, vdupq_n_u8(15)), odd = vshrq_n_u8(v, 4);
    return {{vzip1q_u8(even, odd), vzip2q_u8(even, odd)}};
  } else {
    auto bytes = [&](int half) {
      const uint16x8x2_t codes = shifted_codes<bits>(block, half);
      const uint8x16_t low =
          vuzp1q_u8(vreinterpretq_u8_u16(codes.val[0]), vreinterpretq_u8_u16(codes.val[1]));
      return vandq_u8(low, vdupq_n_u8((1 << bits) - 1));
    };
    return {{bytes(0), bytes(1)}};
  }
}

static inline Vec to_vec(uint16x8_t v) {
  return {{{vcvtq_f32_u32(vmovl_u16(vget_low_u16(v))), vcvtq_f32_u32(vmovl_high_u16(v))}}};
}

template <int bits>
static inline void unpack(const uint8_t* block, Vec (&out)[4]) {
  const uint8x16x2_t codes = unpack_bytes<bits>(block);
  for (int j = 0; j < 2; ++j) {
    out[2 * j] = to_vec(vmovl_u8(vget_low_u8(codes.val[j])));
    out[2 * j + 1] = to_vec(vmovl_high_u8(codes.val[j]));
  }
}

// 32 E2M1 codes: sign, two bits of exponent, one of mantissa. Their values are exact in bf16, whose
// two bytes come from a table each.
static inline void unpack_e2m1(const uint8_t* block, Vec (&out)[4]) {
  alignas(16) static constexpr uint8_t low[16] = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0,
                                                  0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
  alignas(16) static constexpr uint8_t high[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                                   0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
  const uint8x16x2_t codes = unpack_bytes<4>(block);
  for (int j = 0; j < 2; ++j) {
    const uint8x16_t lows = vqtbl1q_u8(vld1q_u8(low), codes.val[j]);
    const uint8x16_t highs = vqtbl1q_u8(vld1q_u8(high), codes.val[j]);
    out[2 * j].v = widen(vreinterpretq_u16_u8(vzip1q_u8(lows, highs)), bfloat_bits{});
    out[2 * j + 1].v = widen(vreinterpretq_u16_u8(vzip2q_u8(lows, highs)), bfloat_bits{});
  }
}

// 32 E4M3 codes: sign, four bits of exponent, three of mantissa. As a bf16 pattern the exponent is
// 120 too small; the product mends it and the subnormals alike.
static inline void unpack_e4m3(const uint8_t* block, Vec (&out)[4]) {
  for (int j = 0; j < 4; ++j) {
    const uint16x8_t codes = vmovl_u8(vld1_u8(block + 8 * j));
    const uint16x8_t magnitudes = vshlq_n_u16(vandq_u16(codes, vdupq_n_u16(0x7f)), 4);
    const uint16x8_t signs = vshlq_n_u16(vandq_u16(codes, vdupq_n_u16(0x80)), 8);
    out[j] = Vec{widen(vorrq_u16(magnitudes, signs), bfloat_bits{})} * Vec::broadcast(0x1p120f);
  }
}

// ---- integers -----------------------------------------------------------------------------------

// Four 16-bit floats, the first in the lowest bits, as fp32.
static inline float32x4_t quad_of(uint64_t four, bfloat_bits) {
  return vreinterpretq_f32_u32(vshll_n_u16(vcreate_u16(four), 16));
}
static inline float32x4_t quad_of(uint64_t four, half_bits) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vcreate_u16(four)));
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
