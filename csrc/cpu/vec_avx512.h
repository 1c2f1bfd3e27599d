// Sixteen fp32 lanes in one AVX-512 register (F, BW and VL; VNNI and VBMI where the compiler is
// told of them). Masked loads read nothing past a block.
#pragma once

#include <immintrin.h>

#include "cpu/elements.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

constexpr int kLanes = 16;

struct Vec {
  __m512 v;

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec broadcast(float s) { return {_mm512_set1_ps(s)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load(const bfloat_bits* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(load_half(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  static Vec load(const half_bits* p) { return {_mm512_cvtph_ps(load_half(p))}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }

  // a · b + c
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
  friend Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }

  float sum() const {
    const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), upper);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 pairs = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)));
  }
  // Of four at once, with the same roundings.
  static Quad sums(const Vec (&a)[4]) {
    auto halves = [](Vec x, Vec y) {
      return _mm512_add_ps(_mm512_shuffle_f32x4(x.v, y.v, 0x44),
                           _mm512_shuffle_f32x4(x.v, y.v, 0xee));
    };
    const __m512 ab = halves(a[0], a[1]), cd = halves(a[2], a[3]);
    const __m512 fours =
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512 pairs = _mm512_add_ps(fours, _mm512_shuffle_ps(fours, fours, 0x4e));
    const __m512 totals = _mm512_add_ps(pairs, _mm512_shuffle_ps(pairs, pairs, 0xb1));
    const __m512i first = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, totals));
  }

 private:
  static __m256i load_half(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
};

// e^x as in vec_avx2.h.
static inline Vec exp(Vec x) {
  const __m512 low = _mm512_set1_ps(-87.33654f);
  // In this order min and max hand a NaN on.
  const __m512 clamped = _mm512_min_ps(_mm512_set1_ps(88.37626f), _mm512_max_ps(low, x.v));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(clamped, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), clamped);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 y = _mm512_set1_ps(1.9875691500e-4f);
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
  y = _mm512_fmadd_ps(_mm512_mul_ps(r, r), y, _mm512_add_ps(r, _mm512_set1_ps(1.f)));
  const __m512i power =
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  const __mmask16 seen = _mm512_cmp_ps_mask(x.v, low, _CMP_NLT_UQ);
  return {_mm512_maskz_mul_ps(seen, y, _mm512_castsi512_ps(power))};
}

// ---- codes --------------------------------------------------------------------------------------
// As in vec_avx2.h a byte shuffle gives each lane the two bytes that hold its code, and a shift by
// a count per lane brings the code down.

// Constants per lane, from f(lane).
template <class T, int count>
struct alignas(64) PerLane {
  T v[count];

  template <class F>
  static constexpr PerLane of(F f) {
    PerLane r{};
    for (int i = 0; i < count; ++i) {
      r.v[i] = static_cast<T>(f(i));
    }
    return r;
  }
  __m512i load(int j = 0) const { return _mm512_load_si512(v + 64 / sizeof(T) * j); }
};

// The first `count` <= 16 bytes in each quarter.
template <int count>
static inline __m512i load_quarters(const uint8_t* p) {
  return _mm512_broadcast_i32x4(_mm_maskz_loadu_epi8((1u << count) - 1, p));
}

// 32 codes as 32-bit lanes.
template <int bits>
static inline void unpack_codes(const uint8_t* block, __m512i (&out)[2]) {
  static constexpr auto bytes = PerLane<int8_t, 64>::of([](int i) {
    const int byte = i / 4 * bits / 8 + i % 4;
    return i % 4 < 2 && byte < 2 * bits ? byte : -1;
  });
  static constexpr auto shifts = PerLane<int32_t, 16>::of([](int i) { return i * bits % 8; });
  const __m512i mask = _mm512_set1_epi32((1 << bits) - 1);
  for (int j = 0; j < 2; ++j) {
    const __m512i pairs =
        _mm512_shuffle_epi8(load_quarters<2 * bits>(block + 2 * bits * j), bytes.load());
    out[j] = _mm512_and_si512(_mm512_srlv_epi32(pairs, shifts.load()), mask);
  }
}

template <int bits>
static inline void unpack(const uint8_t* block, Vec (&out)[2]) {
  __m512i codes[2];
  unpack_codes<bits>(block, codes);
  out[0].v = _mm512_cvtepi32_ps(codes[0]);
  out[1].v = _mm512_cvtepi32_ps(codes[1]);
}

// 32 E2M1 codes: sign, two bits of exponent, one of mantissa.
static inline void unpack_e2m1(const uint8_t* block, Vec (&out)[2]) {
  const __m512 values = _mm512_setr_ps(0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -.5f, -1.f,
                                       -1.5f, -2.f, -3.f, -4.f, -6.f);
  __m512i codes[2];
  unpack_codes<4>(block, codes);
  out[0].v = _mm512_permutexvar_ps(codes[0], values);
  out[1].v = _mm512_permutexvar_ps(codes[1], values);
}

// 32 E4M3 codes: sign, four bits of exponent, three of mantissa. As an fp32 pattern the exponent is
// 120 too small; the product mends it and the subnormals alike.
static inline void unpack_e4m3(const uint8_t* block, Vec (&out)[2]) {
  const __m512i magnitude = _mm512_set1_epi32(0x7f << 20);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  for (int j = 0; j < 2; ++j) {
    const __m512i codes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 16 * j)));
    const __m512i fields = _mm512_and_si512(_mm512_slli_epi32(codes, 20), magnitude);
    const __m512i signs = _mm512_and_si512(_mm512_slli_epi32(codes, 24), sign);
    const __m512i pattern = _mm512_or_si512(fields, signs);
    out[j].v = _mm512_mul_ps(_mm512_castsi512_ps(pattern), _mm512_set1_ps(0x1p120f));
  }
}

// ---- integers -----------------------------------------------------------------------------------

// 64 codes, or 64 integers of x, in lanes as wide as X, the type of those integers.
template <class X>
struct Codes {
  __m512i v[sizeof(X)];

  static Codes load(const X* p) {
    Codes codes;
    for (__m512i& v : codes.v) {
      v = _mm512_loadu_si512(p);
      p += sizeof(v) / sizeof(X);
    }
    return codes;
  }
};
template <class X>
using Inputs = Codes<X>;

// 16 x int32; the first and the third quarter are of the first 32 codes of a unit.
struct Sums {
  __m512i v;

  static Sums zero() { return {_mm512_setzero_si512()}; }
  // Neighbouring products are added in pairs.
  void add_products(const Codes<int16_t>& a, const Inputs<int16_t>& b) {
    for (int j = 0; j < 2; ++j) {
#if defined(__AVX512VNNI__)
      v = _mm512_dpwssd_epi32(v, a.v[j], b.v[j]);
#else
      v = _mm512_add_epi32(v, _mm512_madd_epi16(a.v[j], b.v[j]));
#endif
    }
  }
  // Codes of at most 6 bits: the sum of two products fits 16 bits, 2 · 63 · 127 < 2^15.
  void add_products(const Codes<int8_t>& a, const Inputs<int8_t>& b) {
#if defined(__AVX512VNNI__)
    v = _mm512_dpbusd_epi32(v, a.v[0], b.v[0]);
#else
    const __m512i twos = _mm512_maddubs_epi16(a.v[0], b.v[0]);
    v = _mm512_add_epi32(v, _mm512_madd_epi16(twos, _mm512_set1_epi16(1)));
#endif
  }
  // 8 x int32, the lower four of the first 32 codes.
  __m256i folded() const {
    return _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
  }
};

#if defined(__AVX512VNNI__)
// sum plus the products of neighbouring 16-bit lanes, added in pairs. Around the intrinsic GCC 12
// copies every sum of a loop twice, which takes a tenth of a panel's time.
static inline __m512i add_pair_products(__m512i sum, __m512i a, __m512i b) {
#if defined(__clang__) || defined(SIMDE_NO_NATIVE)
  return _mm512_dpwssd_epi32(sum, a, b);
#else
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#endif
}
#endif

// kLanes x int32: sums of as many columns.
struct ColumnSums {
  __m512i v;

  static ColumnSums zero() { return {_mm512_setzero_si512()}; }
  // Adds w[c][0] x[0] + w[c][1] x[1] to column c.
  void add_pair(const int16_t* w, const int16_t* x) {
    int32_t pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    const __m512i codes = _mm512_loadu_si512(w), inputs = _mm512_set1_epi32(pair);
#if defined(__AVX512VNNI__)
    v = add_pair_products(v, codes, inputs);
#else
    v = _mm512_add_epi32(v, _mm512_madd_epi16(codes, inputs));
#endif
  }
  Vec to_float() const { return {_mm512_cvtepi32_ps(v)}; }
};

// 64 codes as 16-bit lanes. Each lane gets a word of two neighbouring bytes that holds 2, 4 or 8
// whole codes; two shifts by a count per lane and a mask then take a code each out of it. The
// second and the fourth quarter of a register work on the last 32 codes of the unit. A word serves
// as many lanes as it holds pairs of codes.
struct Place {
  int code;   // of the unit
  int byte;   // where its word starts
  int shift;  // of the code within the word
};

static constexpr Place place_at(int bits, int i) {
  const int together = bits == 2 ? 8 : bits <= 4 ? 4 : 2;  // codes in a word
  const int lane = i % 32, half = lane / 8 % 2, slot = lane / 16 * 8 + lane % 8;
  const int words = 32 / together;
  const int word = slot % words, position = i / 32 * (together / 2) + slot / words;
  const int bit = word * together * bits;
  return {32 * half + word * together + position, 4 * bits * half + bit / 8,
          bit % 8 + position * bits};
}

// Which of a unit's 64 codes unpack_unit puts at place i of its registers: of bytes, quarters take
// turns between the first and the last 32 codes.
static constexpr int code_at(int16_t, int bits, int i) {
  return place_at(bits, i).code;
}
static constexpr int code_at(int8_t, int, int i) {
  return 32 * (i / 16 % 2) + 16 * (i / 32) + i % 16;
}

// The bytes of a unit in another order: at place i byte byte_at(i). ByteAt is a function without
// captures, so that the order is known when compiled.
template <int bits, class ByteAt>
MIXBIT_INLINE __m512i ordered_bytes(const uint8_t* unit, ByteAt) {
  static constexpr ByteAt byte_at{};
  const __m512i bytes = _mm512_maskz_loadu_epi8(~0ull >> (64 - 8 * bits), unit);
#if defined(__AVX512VBMI__)
  static constexpr auto order = PerLane<int8_t, 64>::of(byte_at);
  return _mm512_permutexvar_epi8(order.load(), bytes);
#else
  // The bytes of a quarter lie within four 32-bit words of the unit: these come first.
  static constexpr auto start = [](int quarter) { return byte_at(16 * quarter) / 4; };
  static constexpr auto dwords = PerLane<int32_t, 16>::of([](int i) {
    const int at = start(i / 4) + i % 4;
    return at < 2 * bits ? at : 0;
  });
  static constexpr auto order =
      PerLane<int8_t, 64>::of([](int i) { return byte_at(i) - 4 * start(i / 16); });
  return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(dwords.load(), bytes), order.load());
#endif
}

template <int bits>
MIXBIT_INLINE __m512i words_of(const uint8_t* unit) {
  if constexpr (bits == 4) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit)));
  } else {
    return ordered_bytes<bits>(unit, [](int i) { return place_at(bits, i / 2).byte + i % 2; });
  }
}

template <int bits>
MIXBIT_INLINE void unpack_unit(const uint8_t* unit, Codes<int16_t>& out) {
  static constexpr auto shifts =
      PerLane<int16_t, 64>::of([](int i) { return place_at(bits, i).shift; });
  const __m512i words = words_of<bits>(unit), mask = _mm512_set1_epi16((1 << bits) - 1);
  for (int j = 0; j < 2; ++j) {
    out.v[j] = _mm512_and_si512(_mm512_srlv_epi16(words, shifts.load(j)), mask);
  }
}

// 64 codes as bytes. With VBMI eight bytes that hold eight codes are brought together and each
// takes its bits out of them; without it a word gets the two bytes that hold two codes, of which
// the second moves to the upper byte.
template <int bits>
MIXBIT_INLINE void unpack_unit(const uint8_t* unit, Codes<int8_t>& out) {
  const __m512i mask = _mm512_set1_epi8((1 << bits) - 1);
#if defined(__AVX512VBMI__)
  static constexpr auto shifts = PerLane<int8_t, 64>::of([](int i) { return i % 8 * bits; });
  const __m512i eights = ordered_bytes<bits>(
      unit, [](int i) { return code_at(int8_t{}, bits, i / 8 * 8) / 8 * bits + i % 8 % bits; });
  out.v[0] = _mm512_and_si512(_mm512_multishift_epi64_epi8(shifts.load(), eights), mask);
#else
  static constexpr auto bit = [](int i) { return code_at(int8_t{}, bits, i / 2 * 2) * bits; };
  static constexpr auto shifts = PerLane<int16_t, 32>::of([](int i) { return bit(2 * i) % 8; });
  const __m512i words = ordered_bytes<bits>(unit, [](int i) { return bit(i) / 8 + i % 2; });
  const __m512i pairs = _mm512_srlv_epi16(words, shifts.load());
  const __m512i codes =
      _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, pairs, _mm512_slli_epi16(pairs, 8 - bits));
  out.v[0] = _mm512_and_si512(codes, mask);
#endif
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE

#include "cpu/vec_x86_integers.h"  // over the Sums above

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

// In whole registers, which takes two thirds of what adding their halves first does.
struct Octets : OctetLanes {
  // The quarters of four sums, the upper two added to the lower: of sums 0 and 1, of 2 and 3.
  struct Four {
    __m512i low, high;
  };

  static Four four(const Sums (&a)[4]) { return {halves(a[0], a[1]), halves(a[2], a[3])}; }

  // The totals: of twice four sums a group each, or of four sums two groups each.
  static __m256 totals(const Four (&a)[2]) { return totals(quarters(a[0]), quarters(a[1])); }
  static __m256 totals(const Four (&a)[1]) { return totals(a[0].low, a[0].high); }

 private:
  static __m512i halves(const Sums& a, const Sums& b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a.v, b.v, 0x44),
                            _mm512_shuffle_i32x4(a.v, b.v, 0xee));
  }
  static __m512i quarters(const Four& a) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a.low, a.high, 0x88),
                            _mm512_shuffle_i32x4(a.low, a.high, 0xdd));
  }
  // Of integers, in the type of the shuffles that serve any.
  static __m512 add(__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  // Of groups 0 to 3 in the quarters of `low`, of 4 to 7 in those of `high`.
  static __m256 totals(__m512i low, __m512i high) {
    const __m512 x = _mm512_castsi512_ps(low), y = _mm512_castsi512_ps(high);
    const __m512 pairs = add(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd));
    const __m512 sums = add(pairs, _mm512_shuffle_ps(pairs, pairs, 0xb1));
    const __m512i order = _mm512_castsi256_si512(_mm256_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14));
    return _mm256_cvtepi32_ps(
        _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, _mm512_castps_si512(sums))));
  }
};

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
