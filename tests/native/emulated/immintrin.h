// Stands in for the compiler's header: the same intrinsics as plain C++, from SIMDe.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#define SIMDE_NO_NATIVE
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

// What SIMDe lacks.
#define _MM_FROUND_NO_EXC SIMDE_MM_FROUND_NO_EXC

static inline __m128i _mm_maskz_loadu_epi8(__mmask16 mask, const void* p) {
  uint8_t bytes[16] = {};
  for (int i = 0; i < 16; ++i) {
    bytes[i] = mask >> i & 1 ? static_cast<const uint8_t*>(p)[i] : 0;
  }
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

static inline __m512i _mm512_maskz_loadu_epi8(__mmask64 mask, const void* p) {
  uint8_t bytes[64] = {};
  for (int i = 0; i < 64; ++i) {
    bytes[i] = mask >> i & 1 ? static_cast<const uint8_t*>(p)[i] : 0;
  }
  return _mm512_loadu_si512(bytes);
}

static inline __m512i _mm512_cvtepu8_epi32(__m128i v) {
  uint8_t bytes[16];
  uint32_t wide[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), v);
  for (int i = 0; i < 16; ++i) {
    wide[i] = bytes[i];
  }
  return _mm512_loadu_si512(wide);
}
