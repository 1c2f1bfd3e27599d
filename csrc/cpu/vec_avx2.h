// Eight fp32 lanes in one AVX2 register.
#pragma once

#include <immintrin.h>

#include "cpu/elements.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

constexpr int kLanes = 8;

struct Vec {
  __m256 v;

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec broadcast(float s) { return {_mm256_set1_ps(s)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load(const bfloat_bits* p) {
    const __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
  }
  static Vec load(const half_bits* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }

  // a · b + c
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
  friend Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }

  float sum() const {
    const __m128 halves = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)));
  }
  // Of four at once, with the same roundings.
  static Quad sums(const Vec (&a)[4]) {
    auto halves = [](Vec x, Vec y) {
      return _mm256_add_ps(_mm256_permute2f128_ps(x.v, y.v, 0x20),
                           _mm256_permute2f128_ps(x.v, y.v, 0x31));
    };
    const __m256 ab = halves(a[0], a[1]), cd = halves(a[2], a[3]);
    const __m256 pairs =
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    const __m256 totals = _mm256_add_ps(pairs, _mm256_permute_ps(pairs, 0xb1));  // a a c c, b b d d
    return _mm_blend_ps(_mm256_castps256_ps128(totals), _mm256_extractf128_ps(totals, 1), 0b1010);
  }
};

// e^x within 1 ulp for x in [-87, 88]; 0 below, also for −∞, and clamped above. x = n ln 2 + r with
// ln 2 in two parts (Cody and Waite), then a minimax polynomial for e^r on |r| <= ln 2 / 2.
static inline Vec exp(Vec x) {
  const __m256 low = _mm256_set1_ps(-87.33654f);
  // In this order min and max hand a NaN on.
  const __m256 clamped = _mm256_min_ps(_mm256_set1_ps(88.37626f), _mm256_max_ps(low, x.v));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(clamped, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), clamped);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 y = _mm256_set1_ps(1.9875691500e-4f);
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0000001201e-1f));
  y = _mm256_fmadd_ps(_mm256_mul_ps(r, r), y, _mm256_add_ps(r, _mm256_set1_ps(1.f)));
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const __m256 value = _mm256_mul_ps(y, _mm256_castsi256_ps(power));
  return {_mm256_and_ps(value, _mm256_cmp_ps(x.v, low, _CMP_NLT_UQ))};
}

// 32 codes as 32-bit lanes, eight to a register, for every width alike.
//
// Eight codes fill `bits` bytes. A broadcast load puts eight bytes that hold them into both halves
// of a register, one byte shuffle gives each lane the two bytes that contain its code, and one
// variable shift brings the code down. Loads stay inside the block: the last ones start early and
// the shuffle makes up for it.
template <int bits>
static inline void unpack_codes(const uint8_t* block, __m256i (&out)[4]) {
  constexpr int last = 4 * bits - 8;  // latest start of an eight-byte load
  const __m256i shifts = _mm256_setr_epi32(0, bits % 8, 2 * bits % 8, 3 * bits % 8, 4 * bits % 8,
                                           5 * bits % 8, 6 * bits % 8, 7 * bits % 8);
  const __m256i mask = _mm256_set1_epi32((1 << bits) - 1);
  auto load = [&](int j) __attribute__((always_inline)) {
    const int start = j * bits < last ? j * bits : last;
    const int skip = j * bits - start;
    // Lane i: bytes at bit i·bits and after; a code that starts in byte 7 ends there.
    auto first = [&](int i) { return skip + i * bits / 8; };
    auto lane = [&](int i) {
      const int byte = first(i);
      return byte | (byte < 7 ? byte + 1 : 7) << 8 | static_cast<int>(0x80800000u);
    };
    const __m256i shuffle =
        _mm256_setr_epi32(lane(0), lane(1), lane(2), lane(3), lane(4), lane(5), lane(6), lane(7));
    long long bytes;
    __builtin_memcpy(&bytes, block + start, sizeof(bytes));
    const __m256i pairs = _mm256_shuffle_epi8(_mm256_set1_epi64x(bytes), shuffle);
    return _mm256_and_si256(_mm256_srlv_epi32(pairs, shifts), mask);
  };
  out[0] = load(0);
  out[1] = load(1);
  out[2] = load(2);
  out[3] = load(3);
}

template <int bits>
static inline void unpack(const uint8_t* block, Vec (&out)[4]) {
  __m256i codes[4];
  unpack_codes<bits>(block, codes);
  for (int j = 0; j < 4; ++j) {
    out[j].v = _mm256_cvtepi32_ps(codes[j]);
  }
}

// 32 E2M1 codes: sign, two bits of exponent, one of mantissa.
static inline void unpack_e2m1(const uint8_t* block, Vec (&out)[4]) {
  const __m256 values = _mm256_setr_ps(0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  __m256i codes[4];
  unpack_codes<4>(block, codes);
  for (int j = 0; j < 4; ++j) {
    const __m256 magnitude = _mm256_permutevar8x32_ps(values, codes[j]);  // reads three bits
    const __m256i signs = _mm256_and_si256(_mm256_slli_epi32(codes[j], 28), sign);
    out[j].v = _mm256_xor_ps(magnitude, _mm256_castsi256_ps(signs));
  }
}

// 32 E4M3 codes: sign, four bits of exponent, three of mantissa. As an fp32 pattern the exponent is
// 120 too small; the product mends it and the subnormals alike.
static inline void unpack_e4m3(const uint8_t* block, Vec (&out)[4]) {
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  for (int j = 0; j < 4; ++j) {
    const __m256i codes =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + 8 * j)));
    const __m256i fields = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(0x7f)), 20);
    const __m256i signs = _mm256_and_si256(_mm256_slli_epi32(codes, 24), sign);
    const __m256 magnitude = _mm256_mul_ps(_mm256_castsi256_ps(fields), _mm256_set1_ps(0x1p120f));
    out[j].v = _mm256_xor_ps(magnitude, _mm256_castsi256_ps(signs));
  }
}

// ---- integers -----------------------------------------------------------------------------------

// 64 codes, or 64 integers of x, in lanes as wide as X, the type of those integers.
template <class X>
struct Codes {
  __m256i v[2 * sizeof(X)];

  static Codes load(const X* p) {
    Codes codes;
    for (__m256i& v : codes.v) {
      v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      p += sizeof(v) / sizeof(X);
    }
    return codes;
  }
};
template <class X>
using Inputs = Codes<X>;

// 8 x int32; the lower four are of the first 32 codes of a unit.
struct Sums {
  __m256i v;

  static Sums zero() { return {_mm256_setzero_si256()}; }
  // Neighbouring products are added in pairs.
  void add_products(const Codes<int16_t>& a, const Inputs<int16_t>& b) {
    for (int j = 0; j < 4; ++j) {
      v = _mm256_add_epi32(v, _mm256_madd_epi16(a.v[j], b.v[j]));
    }
  }
  // Codes of at most 6 bits: the sum of four products fits 16 bits, 4 · 63 · 127 < 2^15.
  void add_products(const Codes<int8_t>& a, const Inputs<int8_t>& b) {
    const __m256i fours = _mm256_add_epi16(_mm256_maddubs_epi16(a.v[0], b.v[0]),
                                           _mm256_maddubs_epi16(a.v[1], b.v[1]));
    v = _mm256_add_epi32(v, _mm256_madd_epi16(fours, _mm256_set1_epi16(1)));
  }
  __m256i folded() const { return v; }
};

// kLanes x int32: sums of as many columns.
struct ColumnSums {
  __m256i v;

  static ColumnSums zero() { return {_mm256_setzero_si256()}; }
  // Adds w[c][0] x[0] + w[c][1] x[1] to column c.
  void add_pair(const int16_t* w, const int16_t* x) {
    int32_t pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
    v = _mm256_add_epi32(v, _mm256_madd_epi16(codes, _mm256_set1_epi32(pair)));
  }
  Vec to_float() const { return {_mm256_cvtepi32_ps(v)}; }
};

// Which of a unit's 64 codes unpack_unit puts at place i of its registers. The lower half of every
// register comes from the first 32 codes.
static constexpr int code_at(int16_t, int bits, int i) {
  const int j = i / 16, half = i % 16 / 8, lane = i % 8;
  switch (bits) {
    case 2:
      return 32 * half + 8 * (lane % 4) + 2 * j + lane / 4;
    case 3:
    case 4:
      return 32 * half + 4 * lane + j;
    default:
      return 32 * half + 16 * (j / 2) + 2 * lane + j % 2;
  }
}
static constexpr int code_at(int8_t, int bits, int i) {
  const int j = i / 32, half = i % 32 / 16, lane = i % 16;
  switch (bits) {
    case 2:
      return 32 * half + 4 * (lane % 8) + 2 * j + lane / 8;
    case 3:
      return 32 * half + 2 * (lane ^ 1) + j;
    case 4:
      return 32 * half + 2 * lane + j;
    default:
      return 32 * half + 16 * j + (lane ^ 1);
  }
}

static inline __m256i load_halves(const uint8_t* low, const uint8_t* high) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
}

// Words of 16 bits that hold several codes each. For 4 bits the packed words are such; for the
// others a shuffle collects the bytes of each word's codes. Loads stay inside the unit.

// 2 bits: eight codes a word, each word twice, once shifted down by a code.
MIXBIT_INLINE __m256i words_of_2(const uint8_t* unit) {
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(unit))), 0x50);
  return _mm256_srlv_epi64(words, _mm256_setr_epi64x(0, 2, 0, 2));
}

// 3 bits: four codes a word, of three bytes the first two and the last two.
MIXBIT_INLINE __m256i words_of_3(const uint8_t* unit) {
  return _mm256_shuffle_epi8(
      load_halves(unit, unit + 8),
      _mm256_setr_epi8(0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11,  //
                       4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11, 12, 13, 14, 14, 15));
}

// 5 and 6 bits: two codes a word, those of 16 s … 16 s + 15 and of 32 codes after. Those of 5 bits
// lie so close that one load brings both halves.
template <int bits>
MIXBIT_INLINE __m256i words_of_pairs(const uint8_t* unit, int s) {
  const int low = 2 * bits * s, high = 2 * bits * (2 + s);
  const int low_start = bits == 5 ? 8 * s : low;
  const int high_start = bits == 5 ? 8 * s + 16 : high < 8 * bits - 16 ? high : 8 * bits - 16;
  const __m256i bytes = bits == 5
                            ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit + low_start))
                            : load_halves(unit + low_start, unit + high_start);
  auto pair = [&](int i, int skip) __attribute__((always_inline)) {
    const int byte = skip + 2 * bits * i / 8;
    return static_cast<short>(byte | (byte + 1) << 8);
  };
  const int first = low - low_start, second = high - high_start;
  return _mm256_shuffle_epi8(
      bytes, _mm256_setr_epi16(pair(0, first), pair(1, first), pair(2, first), pair(3, first),
                               pair(4, first), pair(5, first), pair(6, first), pair(7, first),
                               pair(0, second), pair(1, second), pair(2, second), pair(3, second),
                               pair(4, second), pair(5, second), pair(6, second), pair(7, second)));
}

// The codes of word i of 3, 5 and 6 bits begin with bit `width` i % 8, `width` the bits of them
// all. A factor for each word, 2 to the power of `to` less that bit: a product with it is the
// variable shift that 16-bit lanes lack, its lower half to the left, its upper half to the right.
template <int width>
MIXBIT_INLINE __m256i factors(int to) {
  auto factor = [&](int i) __attribute__((always_inline)) {
    return static_cast<short>(1 << (to - width * i % 8));
  };
  return _mm256_setr_epi16(factor(0), factor(1), factor(2), factor(3), factor(4), factor(5),
                           factor(6), factor(7), factor(0), factor(1), factor(2), factor(3),
                           factor(4), factor(5), factor(6), factor(7));
}

// 64 codes as 16-bit lanes: words give up one code a register by a shift and a mask.
template <int bits>
MIXBIT_INLINE void unpack_unit(const uint8_t* unit, Codes<int16_t>& out) {
  const __m256i mask = _mm256_set1_epi16((1 << bits) - 1);
  if constexpr (bits == 2) {
    const __m256i words = words_of_2(unit);
    out.v[0] = _mm256_and_si256(words, mask);
    out.v[1] = _mm256_and_si256(_mm256_srli_epi16(words, 4), mask);
    out.v[2] = _mm256_and_si256(_mm256_srli_epi16(words, 8), mask);
    out.v[3] = _mm256_and_si256(_mm256_srli_epi16(words, 12), mask);
  } else if constexpr (bits == 3) {
    const __m256i words = _mm256_mullo_epi16(words_of_3(unit), factors<12>(4));
    out.v[0] = _mm256_and_si256(_mm256_srli_epi16(words, 4), mask);
    out.v[1] = _mm256_and_si256(_mm256_srli_epi16(words, 7), mask);
    out.v[2] = _mm256_and_si256(_mm256_srli_epi16(words, 10), mask);
    out.v[3] = _mm256_srli_epi16(words, 13);
  } else if constexpr (bits == 4) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit));
    out.v[0] = _mm256_and_si256(words, mask);
    out.v[1] = _mm256_and_si256(_mm256_srli_epi16(words, 4), mask);
    out.v[2] = _mm256_and_si256(_mm256_srli_epi16(words, 8), mask);
    out.v[3] = _mm256_srli_epi16(words, 12);
  } else if constexpr (bits == 8) {
    for (int s = 0; s < 2; ++s) {
      const __m256i words = load_halves(unit + 16 * s, unit + 32 + 16 * s);
      out.v[2 * s] = _mm256_and_si256(words, mask);
      out.v[2 * s + 1] = _mm256_srli_epi16(words, 8);
    }
  } else {
    for (int s = 0; s < 2; ++s) {
      const __m256i words =
          _mm256_mullo_epi16(words_of_pairs<bits>(unit, s), factors<2 * bits>(16 - 2 * bits));
      out.v[2 * s] = _mm256_and_si256(_mm256_srli_epi16(words, 16 - 2 * bits), mask);
      out.v[2 * s + 1] = _mm256_srli_epi16(words, 16 - bits);
    }
  }
}

// The first `bits` bits of each word's codes in its upper byte, the next in its lower byte, with
// higher bits above them.
template <int bits>
MIXBIT_INLINE __m256i split_words(__m256i words) {
  const __m256i first = _mm256_mullo_epi16(words, factors<2 * bits>(8));
  const __m256i second = _mm256_mulhi_epu16(words, factors<2 * bits>(16 - bits));
  return _mm256_blendv_epi8(second, first, _mm256_set1_epi16(static_cast<short>(0xff00)));
}

// 64 codes as bytes: words give up two codes a register, one in each byte.
template <int bits>
MIXBIT_INLINE void unpack_unit(const uint8_t* unit, Codes<int8_t>& out) {
  const __m256i mask = _mm256_set1_epi8((1 << bits) - 1);
  if constexpr (bits == 2) {
    const __m256i words = words_of_2(unit);
    out.v[0] = _mm256_and_si256(words, mask);
    out.v[1] = _mm256_and_si256(_mm256_srli_epi16(words, 4), mask);
  } else if constexpr (bits == 3) {
    const __m256i twos = split_words<6>(words_of_3(unit));
    out.v[0] = _mm256_and_si256(twos, mask);
    out.v[1] = _mm256_and_si256(_mm256_srli_epi16(twos, 3), mask);
  } else if constexpr (bits == 4) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit));
    out.v[0] = _mm256_and_si256(words, mask);
    out.v[1] = _mm256_and_si256(_mm256_srli_epi16(words, 4), mask);
  } else {
    out.v[0] = _mm256_and_si256(split_words<bits>(words_of_pairs<bits>(unit, 0)), mask);
    out.v[1] = _mm256_and_si256(split_words<bits>(words_of_pairs<bits>(unit, 1)), mask);
  }
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE

#include "cpu/vec_x86_integers.h"  // over the Sums above

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

struct Octets : OctetLanes {
  using Four = __m256i;

  static Four four(const Sums (&a)[4]) { return totals_of_halves(a); }

  // The totals: of twice four sums a group each, or of four sums two groups each, groups 0, 2, 4, 6
  // below and 1, 3, 5, 7 above.
  static __m256 totals(const Four (&a)[2]) {
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_permute2x128_si256(a[0], a[1], 0x20),
                                               _mm256_permute2x128_si256(a[0], a[1], 0x31)));
  }
  static __m256 totals(const Four (&a)[1]) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_cvtepi32_ps(_mm256_permutevar8x32_epi32(a[0], order));
  }
};

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
