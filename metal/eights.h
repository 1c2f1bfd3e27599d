// Eight neighbouring values of a weight row in fp32, for the formats of dequantize.h. Eight codes
// of any width are whole bytes, and no group is smaller, so rows can be taken apart at multiples of
// eight without reading a byte twice.
//
// Eights<F> has
//   from(m, row, K)            the matrix without its first rows
//   Raw                        eight values as stored, with their scale
//   load<whole>(m, row, K, k)  reads values k … k + 7 of a row; k < K. `whole`: 8 divides K
//   decode(raw, values)        makes floats of them
#pragma once

#include <metal_stdlib>

#include "dequantize.h"

using namespace metal;

template <typename T>
struct alignas(16) Eight {
  T v[8];
};

template <typename F>
struct Eights;

// Eight codes as one stream of at most 64 bits, first code lowest.
template <short bits>
METAL_FUNC uint2 load_codes(const device uchar* p) {
  if (bits == 2) {
    return uint2(*(const device ushort*)p, 0);
  }
  if (bits == 3) {
    return uint2(uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16, 0);
  }
  if (bits == 4) {
    return uint2(*(const device uint*)p, 0);
  }
  if (bits == 5) {
    return uint2(uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16 | uint(p[3]) << 24, p[4]);
  }
  if (bits == 6) {
    const device ushort* q = (const device ushort*)p;
    return uint2(uint(q[0]) | uint(q[1]) << 16, q[2]);
  }
  return *(const device uint2*)p;
}

// Code i as a float, exactly and without a conversion: its bits where they are in a window of 32,
// under the exponent that gives them weight one, less the float that has that exponent alone.
template <short bits>
METAL_FUNC float code_value(uint2 codes, short i) {
  const short first = i * bits / 16 * 16, at = i * bits - first;
  const uint window = first == 0    ? codes.x
                      : first == 16 ? codes.x >> 16 | codes.y << 16
                      : first == 32 ? codes.y
                                    : codes.y >> 16;
  const uint exponent = uint(150 - at) << 23;
  return as_type<float>((window & ((1u << bits) - 1) << at) | exponent) - as_type<float>(exponent);
}

template <short bits, short group, typename S>
struct Eights<Affine<bits, group, S>> {
  struct Raw {
    uint2 codes;
    float scale, bias;
  };

  static METAL_FUNC Matrix from(Matrix m, uint row, uint K) {
    const size_t groups = size_t(row) * (K / group);
    return {m.w + size_t(row) * (K / 8 * bits), m.scales + groups * sizeof(S),
            m.biases + groups * sizeof(S)};
  }

  template <bool whole>
  static METAL_FUNC Raw load(Matrix m, uint row, uint K, uint k) {
    const uint at = row * (K / group) + k / group;
    return {load_codes<bits>(m.w + (row * (K / 8 * bits) + k / 8 * bits)), value<S>(m.scales, at),
            value<S>(m.biases, at)};
  }

  static METAL_FUNC void decode(Raw raw, thread float* values) {
    UNROLL for (short i = 0; i < 8; ++i) {
      values[i] = fma(code_value<bits>(raw.codes, i), raw.scale, raw.bias);
    }
  }
};

// E2M1 and E4M3 codes, a scale of eight bits a group.
template <short bits, short group, bool e8m0>
struct FloatEights {
  struct Raw {
    uint2 codes;
    float scale;
  };

  static METAL_FUNC Matrix from(Matrix m, uint row, uint K) {
    return {m.w + size_t(row) * (K / 8 * bits), m.scales + size_t(row) * (K / group), m.biases};
  }

  template <bool whole>
  static METAL_FUNC Raw load(Matrix m, uint row, uint K, uint k) {
    const uchar scale = m.scales[row * (K / group) + k / group];
    return {load_codes<bits>(m.w + (row * (K / 8 * bits) + k / 8 * bits)),
            e8m0 ? from_e8m0(scale) : from_e4m3(scale)};
  }

  static METAL_FUNC void decode(Raw raw, thread float* values) {
    UNROLL for (short i = 0; i < 8; ++i) {
      const float digit = bits == 4 ? 16384.0f * e2m1_digit(raw.codes.x, i)
                                    : 256.0f * e4m3_digit(i < 4 ? raw.codes.x : raw.codes.y, i % 4);
      values[i] = digit * raw.scale;
    }
  }
};
template <>
struct Eights<Mxfp4> : FloatEights<4, 32, true> {};
template <>
struct Eights<Mxfp8> : FloatEights<8, 32, true> {};
template <>
struct Eights<Nvfp4> : FloatEights<4, 16, false> {};

template <typename D>
struct Eights<Dense<D>> {
  using Raw = Eight<D>;

  static METAL_FUNC Matrix from(Matrix m, uint row, uint K) {
    return {m.w + size_t(row) * K * sizeof(D), m.scales, m.biases};
  }

  template <bool whole>
  static METAL_FUNC Raw load(Matrix m, uint row, uint K, uint k) {
    const device D* p = (const device D*)m.w + (row * K + k);
    if (whole) {
      return *(const device Raw*)p;
    }
    Raw raw;
    UNROLL for (short i = 0; i < 8; ++i) {
      raw.v[i] = load_if(k + i < K, p + i);
    }
    return raw;
  }

  static METAL_FUNC void decode(Raw raw, thread float* values) {
    UNROLL for (short i = 0; i < 8; ++i) {
      values[i] = to_float(raw.v[i]);
    }
  }
};
