// Integer products on bytes, for NEON with the dot product instructions or also with those of 8-bit
// matrices (i8mm): 16 or 32 products an instruction, where 16-bit lanes take 4.
//
// An integer of x is 256 high + low, high a signed byte and low an unsigned one, so that
//   Σ code q = 256 Σ code high + Σ code low
// exactly. In the 128 bytes of a unit of x the 64 high bytes come first, then the 64 low ones.
//
// Codes are unsigned and low is too; high is not. Up to 6 bits a code is a signed byte as well. Of
// 8 bits it is not, and only i8mm multiplies unsigned by signed bytes; without it high + 128 is
// stored instead and 128 Σ code taken off.
#pragma once

#include <type_traits>

#include "cpu/kernels.h"
#include "cpu/vec_neon_units.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

#if defined(__ARM_FEATURE_MATMUL_INT8)
static constexpr bool high_is_biased(int) {
  return false;
}
#else
static constexpr bool high_is_biased(int bits) {
  return bits == 8;
}
#endif

static inline int32x4_t total_of(int32x4_t high, uint32x4_t low) {
  return vaddq_s32(vshlq_n_s32(high, 8), vreinterpretq_s32_u32(low));
}

// ---- one column ---------------------------------------------------------------------------------

// 64 codes, alike for any integers of x.
template <class>
struct Codes {
  uint8x16_t v[4];
  bool beside_biased;  // what x has beside them, known when compiled
};

template <int bits, class X>
MIXBIT_INLINE void unpack_unit(const uint8_t* unit, Codes<X>& out) {
  const uint8x16x4_t codes = unpack_places<bits>(unit);
  for (int j = 0; j < 4; ++j) {
    out.v[j] = codes.val[j];
  }
  out.beside_biased = high_is_biased(bits);
}

// 64 integers of x of 16 bits.
struct HighAndLow {
  uint8x16_t high[4], low[4];

  static HighAndLow load(const int16_t* unit) {
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(unit);
    HighAndLow x;
    for (int j = 0; j < 4; ++j) {
      x.high[j] = vld1q_u8(bytes + 16 * j);
      x.low[j] = vld1q_u8(bytes + kUnit + 16 * j);
    }
    return x;
  }
};

template <class X>
using Inputs = std::conditional_t<sizeof(X) == 1, Lanes<int8_t>, HighAndLow>;

// Four sums of four products each are added to `sum`.
static inline int32x4_t add_high(int32x4_t sum, uint8x16_t codes, uint8x16_t high) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return vusdotq_s32(sum, codes, vreinterpretq_s8_u8(high));
#else
  return vdotq_s32(sum, vreinterpretq_s8_u8(codes), vreinterpretq_s8_u8(high));
#endif
}

// 4 x int32, the lower two of the first 32 codes of a unit.
struct Sums {
  int32x4_t high;
  uint32x4_t low;

  static Sums zero() { return {vdupq_n_s32(0), vdupq_n_u32(0)}; }

  void add_products(const Codes<int16_t>& a, const Inputs<int16_t>& b) {
    if (a.beside_biased) {
      uint32x4_t sum = vreinterpretq_u32_s32(high), codes = vdupq_n_u32(0);
      for (int j = 0; j < 4; ++j) {
        sum = vdotq_u32(sum, a.v[j], b.high[j]);
        codes = vdotq_u32(codes, a.v[j], vdupq_n_u8(128));
      }
      high = vreinterpretq_s32_u32(vsubq_u32(sum, codes));
    } else {
      for (int j = 0; j < 4; ++j) {
        high = add_high(high, a.v[j], b.high[j]);
      }
    }
    for (int j = 0; j < 4; ++j) {
      low = vdotq_u32(low, a.v[j], b.low[j]);
    }
  }
  // Codes of at most 6 bits; there are no high bytes.
  void add_products(const Codes<int8_t>& a, const Inputs<int8_t>& b) {
    int32x4_t sum = vreinterpretq_s32_u32(low);
    for (int j = 0; j < 4; ++j) {
      sum = vdotq_s32(sum, vreinterpretq_s8_u8(a.v[j]), b.v[j]);
    }
    low = vreinterpretq_u32_s32(sum);
  }
  int32x4_t folded() const { return total_of(high, low); }
};

// ---- many columns -------------------------------------------------------------------------------

using PanelCode = uint8_t;
constexpr int kIntegerColumns = 2 * kLanes;  // of a panel
constexpr int kTileRows = 2;                 // as many as have their sums in registers

// Eight places of a row of x from place `at` on: their high bytes and their low ones.
struct Eight {
  uint8x8_t high, low;

  static Eight load(const int16_t* x, int at) {
    const uint8_t* unit = reinterpret_cast<const uint8_t*>(x + at / kUnit * kUnit);
    return {vld1_u8(unit + at % kUnit), vld1_u8(unit + kUnit + at % kUnit)};
  }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)

constexpr int kTogether = 8;  // codes of a column that lie side by side in a panel

// The sums of R rows of x. Sixteen bytes of a panel are two columns, and two rows of x the other
// factor, of a product of matrices [2, 8] and [8, 2]; a row that is alone is its own partner.
template <int bits, int R>
struct Tile {
  static constexpr int pairs = kIntegerColumns / 2;
  int32x4_t high[pairs];  // of columns 0, 0, 1, 1 and rows 0, 1, 0, 1
  uint32x4_t low[pairs];

  static Tile zero() {
    Tile t;
    for (int i = 0; i < pairs; ++i) {
      t.high[i] = vdupq_n_s32(0);
      t.low[i] = vdupq_n_u32(0);
    }
    return t;
  }

  // `count` places of x and of the panel w from `begin` on.
  inline __attribute__((always_inline)) void add(const int16_t* x, size_t stride,
                                                 const PanelCode* w, int begin, int count) {
    for (int at = begin; at < begin + count; at += kTogether) {
      const Eight a = Eight::load(x, at), b = Eight::load(x + (R - 1) * stride, at);
      const int8x16_t highs = vreinterpretq_s8_u8(vcombine_u8(a.high, b.high));
      const uint8x16_t lows = vcombine_u8(a.low, b.low);
      for (int i = 0; i < pairs; ++i) {
        const uint8x16_t codes = vld1q_u8(w + at * kIntegerColumns + 16 * i);
        high[i] = vusmmlaq_s32(high[i], codes, highs);
        low[i] = vmmlaq_u32(low[i], codes, lows);
      }
    }
  }

  // Row r, columns [8 c, 8 c + 8).
  Vec to_float(int r, int c) const {
    auto four = [&](int i) {
      const int32x4_t a = total_of(high[i], low[i]), b = total_of(high[i + 1], low[i + 1]);
      return vcvtq_f32_s32(r == 0 ? vuzp1q_s32(a, b) : vuzp2q_s32(a, b));
    };
    return {{{four(4 * c), four(4 * c + 2)}}};
  }
};

#else

constexpr int kTogether = 4;  // codes of a column that lie side by side in a panel

// The sums of R rows of x. Sixteen bytes of a panel are four columns.
template <int bits, int R>
struct Tile {
  static constexpr int quads = kIntegerColumns / 4;
  int32x4_t high[R][quads];
  uint32x4_t low[R][quads];
  uint32x4_t codes[quads];  // where high is biased: 128 Σ code

  static Tile zero() {
    Tile t;
    for (int i = 0; i < quads; ++i) {
      for (int r = 0; r < R; ++r) {
        t.high[r][i] = vdupq_n_s32(0);
        t.low[r][i] = vdupq_n_u32(0);
      }
      t.codes[i] = vdupq_n_u32(0);
    }
    return t;
  }

  // `count` places of x and of the panel w from `begin` on.
  inline __attribute__((always_inline)) void add(const int16_t* x, size_t stride,
                                                 const PanelCode* w, int begin, int count) {
    for (int at = begin; at < begin + count; at += 2 * kTogether) {
      Eight rows[R];
      for (int r = 0; r < R; ++r) {
        rows[r] = Eight::load(x + r * stride, at);
      }
      add_four<0>(rows, w + at * kIntegerColumns);
      add_four<1>(rows, w + (at + kTogether) * kIntegerColumns);
    }
  }

  // Row r, columns [8 c, 8 c + 8).
  Vec to_float(int r, int c) const {
    auto four = [&](int i) {
      int32x4_t h = high[r][i];
      if constexpr (high_is_biased(bits)) {
        h = vsubq_s32(h, vreinterpretq_s32_u32(codes[i]));
      }
      return vcvtq_f32_s32(total_of(h, low[r][i]));
    };
    return {{{four(2 * c), four(2 * c + 1)}}};
  }

 private:
  // Four places: those of `lane` of eight.
  template <int lane>
  inline __attribute__((always_inline)) void add_four(const Eight (&x)[R], const PanelCode* w) {
    for (int i = 0; i < quads; ++i) {
      const uint8x16_t v = vld1q_u8(w + 16 * i);
      if constexpr (high_is_biased(bits)) {
        codes[i] = vdotq_u32(codes[i], v, vdupq_n_u8(128));
      }
      for (int r = 0; r < R; ++r) {
        if constexpr (high_is_biased(bits)) {
          high[r][i] = vreinterpretq_s32_u32(
              vdotq_lane_u32(vreinterpretq_u32_s32(high[r][i]), v, x[r].high, lane));
        } else {
          high[r][i] = vdotq_lane_s32(high[r][i], vreinterpretq_s8_u8(v),
                                      vreinterpret_s8_u8(x[r].high), lane);
        }
        low[r][i] = vdotq_lane_u32(low[r][i], v, x[r].low, lane);
      }
    }
  }
};

#endif

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
