// Eight fp32 lanes through the compiler's vector extension: the fallback for any processor.
#pragma once

#include "cpu/elements.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

constexpr int kLanes = 8;

struct Vec {
  typedef float Lanes __attribute__((vector_size(32), aligned(4)));
  Lanes v;

  static Vec zero() { return {Lanes{}}; }
  static Vec broadcast(float s) { return {Lanes{s, s, s, s, s, s, s, s}}; }
  static Vec load(const float* p) {
    Vec r;
    __builtin_memcpy(&r.v, p, sizeof(r.v));
    return r;
  }
  static Vec load(const bfloat_bits* p) { return convert(p); }
  static Vec load(const half_bits* p) { return convert(p); }
  void store(float* p) const { __builtin_memcpy(p, &v, sizeof(v)); }

  // a · b + c
  static Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
  friend Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
  friend Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
  friend Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }

  float sum() const { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }
  static Quad sums(const Vec (&a)[4]) {
    return Quad{a[0].sum(), a[1].sum(), a[2].sum(), a[3].sum()};
  }

 private:
  template <class T>
  static Vec convert(const T* p) {
    Vec r;
    for (int i = 0; i < 8; ++i) {
      r.v[i] = to_float(p[i]);
    }
    return r;
  }
};

static inline Vec exp(Vec x) {
  Vec r;
  for (int i = 0; i < 8; ++i) {
    r.v[i] = __builtin_expf(x.v[i]);
  }
  return r;
}

// 32 codes of `bits` bits as floats, eight to a vector.
template <int bits>
static inline void unpack(const uint8_t* block, Vec (&out)[4]) {
  for (int j = 0; j < 4; ++j) {
    uint64_t word = 0;
    __builtin_memcpy(&word, block + j * bits, bits);
    for (int i = 0; i < 8; ++i) {
      out[j].v[i] = static_cast<float>((word >> (i * bits)) & ((1u << bits) - 1));
    }
  }
}

// 32 E2M1 codes: sign, two bits of exponent, one of mantissa.
static inline void unpack_e2m1(const uint8_t* block, Vec (&out)[4]) {
  constexpr float values[16] = {0.f,  .5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};
  for (int i = 0; i < 32; ++i) {
    out[i / 8].v[i % 8] = values[(block[i / 2] >> (i % 2 * 4)) & 15];
  }
}

// 32 E4M3 codes: sign, four bits of exponent, three of mantissa.
static inline void unpack_e4m3(const uint8_t* block, Vec (&out)[4]) {
  for (int i = 0; i < 32; ++i) {
    out[i / 8].v[i % 8] = from_e4m3(block[i]);
  }
}

// ---- integers -----------------------------------------------------------------------------------

// 64 codes, or 64 integers of x.
template <class X>
struct Codes {
  X v[64];

  static Codes load(const X* p) {
    Codes codes;
    __builtin_memcpy(&codes, p, sizeof(codes));
    return codes;
  }
};
template <class X>
using Inputs = Codes<X>;

// 8 x int32; the lower four are of the first 32 codes of a unit.
struct Sums {
  int32_t v[8];

  static Sums zero() { return {}; }
  template <class X>
  void add_products(const Codes<X>& a, const Inputs<X>& b) {
    for (int i = 0; i < 64; ++i) {
      v[i / 32 * 4 + i % 4] += a.v[i] * b.v[i];
    }
  }
};

// kLanes x int32: sums of as many columns.
struct ColumnSums {
  int32_t v[kLanes];

  static ColumnSums zero() { return {}; }
  // Adds w[c][0] x[0] + w[c][1] x[1] to column c.
  void add_pair(const int16_t* w, const int16_t* x) {
    for (int c = 0; c < kLanes; ++c) {
      v[c] += w[2 * c] * x[0] + w[2 * c + 1] * x[1];
    }
  }
  Vec to_float() const {
    Vec r;
    for (int c = 0; c < kLanes; ++c) {
      r.v[c] = static_cast<float>(v[c]);
    }
    return r;
  }
};

typedef float Totals __attribute__((vector_size(16)));

// Four 16-bit floats, the first in the lowest bits, as fp32.
template <class T>
static inline Totals quad_of(uint64_t four, T) {
  Totals r = {};
  for (int c = 0; c < 4; ++c) {
    r[c] = to_float(T{static_cast<uint16_t>(four >> (16 * c))});
  }
  return r;
}

static inline int32_t total(const int32_t* v, int count) {
  int32_t total = 0;
  for (int i = 0; i < count; ++i) {
    total += v[i];
  }
  return total;
}

// The totals of four groups: one a sum, or one in each half of a sum.
static inline Totals totals(const Sums (&a)[4]) {
  Totals r = {};
  for (int c = 0; c < 4; ++c) {
    r[c] = static_cast<float>(total(a[c].v, 8));
  }
  return r;
}
static inline Totals totals(const Sums (&a)[2]) {
  Totals r = {};
  for (int c = 0; c < 4; ++c) {
    r[c] = static_cast<float>(total(a[c / 2].v + c % 2 * 4, 4));
  }
  return r;
}

using Octets = void;  // four groups fill a vector here

// Which of a unit's 64 codes unpack_unit puts at place i: they keep their own order here.
template <class X>
static constexpr int code_at(X, int, int i) {
  return i;
}

template <int bits, class X>
MIXBIT_INLINE void unpack_unit(const uint8_t* unit, Codes<X>& out) {
  for (int j = 0; j < 8; ++j) {
    uint64_t word = 0;
    __builtin_memcpy(&word, unit + j * bits, bits);
    for (int i = 0; i < 8; ++i) {
      out.v[8 * j + i] = static_cast<X>((word >> (i * bits)) & ((1u << bits) - 1));
    }
  }
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
