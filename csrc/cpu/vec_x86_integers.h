// How integer products on x86 are finished: alike for AVX2 and AVX-512, whose Sums fold to eight
// lanes, the lower four of the first 32 codes of a unit.
#pragma once

#include <immintrin.h>

#include "cpu/elements.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

// Four 16-bit floats, the first in the lowest bits, as fp32.
static inline __m128 quad_of(uint64_t four, bfloat_bits) {
  const __m128i wide = _mm_cvtepu16_epi32(_mm_cvtsi64_si128(static_cast<long long>(four)));
  return _mm_castsi128_ps(_mm_slli_epi32(wide, 16));
}
static inline __m128 quad_of(uint64_t four, half_bits) {
  return _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<long long>(four)));
}

// Neighbouring lanes in each half of a, then of b, added: vphaddd in half of its operations.
static inline __m256i add_neighbours(__m256i a, __m256i b) {
  const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
  return _mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)),
                          _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd)));
}

// The totals of the lower halves of four sums, then of the upper ones.
static inline __m256i totals_of_halves(const Sums (&a)[4]) {
  return add_neighbours(add_neighbours(a[0].folded(), a[1].folded()),
                        add_neighbours(a[2].folded(), a[3].folded()));
}

// The totals of four groups: one a sum, or one in each half of a sum.
static inline __m128 totals(const Sums (&a)[4]) {
  const __m256i halves = totals_of_halves(a);
  return _mm_cvtepi32_ps(
      _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
}
static inline __m128 totals(const Sums (&a)[2]) {
  const __m256i pairs = add_neighbours(a[0].folded(), a[1].folded());
  const __m256i sums = add_neighbours(pairs, pairs);  // groups 0 and 2 below, 1 and 3 above
  return _mm_cvtepi32_ps(
      _mm_unpacklo_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)));
}

// Eight groups, finished as one vector; Octets of either instruction set adds their totals.
struct OctetLanes {
  static __m128 first(__m256 a) { return _mm256_castps256_ps128(a); }
  static __m128 second(__m256 a) { return _mm256_extractf128_ps(a, 1); }

  static __m256 load(const float* p) { return _mm256_loadu_ps(p); }
  static __m256 load(const bfloat_bits* p) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
  }
  static __m256 load(const half_bits* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
};

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
