// Element types of arrays that kernels read and write, and their conversion to and from fp32.
//
// Everything here is `static`: the same text is compiled for several instruction sets, and a shared
// inline function would let the linker hand AVX2 code to a processor without it.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#endif

// For the insides of a kernel's loop, where a call would send registers through memory.
#define MIXBIT_INLINE static inline __attribute__((always_inline))

namespace mixbit::cpu {

enum class Element { f32, f16, bf16 };

static constexpr size_t size_of(Element e) {
  return e == Element::f32 ? 4 : 2;
}

// 16-bit floats as bit patterns: the arithmetic is always fp32.
struct half_bits {
  uint16_t bits;
};
struct bfloat_bits {
  uint16_t bits;
};

template <class To, class From>
static inline To bits_as(From v) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, v);
}

static inline float to_float(float v) {
  return v;
}

static inline float to_float(bfloat_bits v) {
  return bits_as<float>(static_cast<uint32_t>(v.bits) << 16);
}

static inline float to_float(half_bits v) {
#if defined(__aarch64__)
  return static_cast<float>(bits_as<__fp16>(v.bits));
#elif defined(__F16C__)
  return _cvtsh_ss(v.bits);
#else
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000) << 16;
  const uint32_t magnitude = v.bits & 0x7fff;
  if (magnitude >= 0x7c00) {
    return bits_as<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  }
  // Shifting the fields up leaves the exponent 112 too small; the product mends it and the
  // subnormals alike.
  const float scaled = bits_as<float>(magnitude << 13) * 0x1p112f;
  return bits_as<float>(bits_as<uint32_t>(scaled) | sign);
#endif
}

static inline bfloat_bits to_bfloat(float v) {
  const uint32_t bits = bits_as<uint32_t>(v);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    return {static_cast<uint16_t>((bits >> 16) | 0x40)};  // quiet NaN
  }
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};  // nearest, ties even
}

static inline half_bits to_half(float v) {
#if defined(__aarch64__)
  return {bits_as<uint16_t>(static_cast<__fp16>(v))};
#elif defined(__F16C__)
  return {_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT)};
#else
  const uint32_t bits = bits_as<uint32_t>(v);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return {static_cast<uint16_t>(sign | 0x7e00)};
  }
  if (magnitude >= 0x477ff000) {  // rounds to 2^16 or more
    return {static_cast<uint16_t>(sign | 0x7c00)};
  }
  if (magnitude < 0x38800000) {
    // Subnormal half: adding 1/2 aligns its last bit with fp32's, so the sum rounds once.
    const float aligned = bits_as<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (bits_as<uint32_t>(aligned) - 0x3f000000))};
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
#endif
}

// Four fp32 lanes, on any processor.
typedef float Quad __attribute__((vector_size(16)));

static constexpr Element element_type(const float*) {
  return Element::f32;
}
static constexpr Element element_type(const half_bits*) {
  return Element::f16;
}
static constexpr Element element_type(const bfloat_bits*) {
  return Element::bf16;
}

static inline float load_element(const void* p, Element e, size_t i) {
  switch (e) {
    case Element::f32:
      return static_cast<const float*>(p)[i];
    case Element::f16:
      return to_float(static_cast<const half_bits*>(p)[i]);
    default:
      return to_float(static_cast<const bfloat_bits*>(p)[i]);
  }
}

static inline void store_element(void* p, Element e, size_t i, float v) {
  switch (e) {
    case Element::f32:
      static_cast<float*>(p)[i] = v;
      break;
    case Element::f16:
      static_cast<half_bits*>(p)[i] = to_half(v);
      break;
    default:
      static_cast<bfloat_bits*>(p)[i] = to_bfloat(v);
  }
}

// Scales and codes of MLX's fp modes. E4M3: sign, 4 bits of exponent, 3 of mantissa; as an fp32
// pattern the exponent is 120 too small, and the product mends it and the subnormals alike.
static inline float from_e4m3(uint8_t code) {
  const float magnitude = bits_as<float>(static_cast<uint32_t>(code & 0x7f) << 20) * 0x1p120f;
  return code & 0x80 ? -magnitude : magnitude;
}

// E8M0: an exponent alone; 0 is 2^-127, a subnormal of fp32.
static inline float from_e8m0(uint8_t code) {
  return bits_as<float>(code == 0 ? 0x00400000u : static_cast<uint32_t>(code) << 23);
}

}  // namespace mixbit::cpu
