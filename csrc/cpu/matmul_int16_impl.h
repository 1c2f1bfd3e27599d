// Products of affine weights with 16-bit activations in exact integer arithmetic, written once over
// Codes, Inputs (32 of each) and Sums (32-bit).
//
// A group of x becomes integers of 16 bits with one scale: x = s q. Then
//   Σ (scale code + bias) x = scale s Σ code q + bias s Σ q,
// where both sums are exact integers (255 · 32767 · 128 < 2^31). Rounding q costs 3e-5 of the
// result, a fiftieth of what bf16 itself does; codes need no conversion to float, which is what the
// fp32 kernel spends its time on. Everything that is rounded happens in the same order on every
// instruction set, so all of them give the same bits, for any number of rows.
#pragma once

#include "cpu/kernels.h"
#include "cpu/vec_math.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

typedef float Quad __attribute__((vector_size(16)));

template <class T>
static void quantize_typed(const T* src, int rows, int K, int group, int16_t* q, float* scales,
                           float* sums) {
  for (int i = 0; i < rows * (K / group); ++i, src += group, q += group) {
    float largest = 0.f;
    bool finite = true;
    for (int j = 0; j < group; ++j) {
      const float v = to_float(src[j]);
      const float magnitude = v < 0.f ? -v : v;
      largest = magnitude > largest ? magnitude : largest;
      finite &= (bits_as<uint32_t>(v) & 0x7f800000u) != 0x7f800000u;
    }
    // A group of subnormals has no inverse in fp32; next to anything else it is nothing.
    const bool zero = largest < 1e-37f;
    const float inverse = zero || !finite ? 0.f : 32767.f / largest;
    int32_t sum = 0;
    for (int j = 0; j < group; ++j) {
      // Adding 1.5 · 2^23 leaves the nearest integer in the low bits.
      const float shifted = finite ? to_float(src[j]) * inverse + 12582912.f : 12582912.f;
      const int32_t value = bits_as<int32_t>(shifted) - 0x4b400000;
      q[j] = static_cast<int16_t>(value);
      sum += value;
    }
    scales[i] = finite ? (zero ? 0.f : largest / 32767.f) : __builtin_nanf("");
    sums[i] = scales[i] * static_cast<float>(sum);
  }
}

static void quantize_rows(const void* src, Element e, int rows, int K, int group, int16_t* q,
                          float* scales, float* sums) {
  with_element(e, [&]<class T>(T) {
    quantize_typed(static_cast<const T*>(src), rows, K, group, q, scales, sums);
  });
}

// C <= 4 values, `stride` apart, as fp32.
template <int C, class T>
static inline Quad load_column(const T* p, size_t stride) {
  if constexpr (C == 4 && sizeof(T) == 2) {
    // Widened together: one by one their moves into a register cost more than the products.
    uint64_t four = 0;
    for (int c = 3; c >= 0; --c) {
      four = four << 16 | p[c * stride].bits;
    }
    return quad_of(four, T{});
  } else {
    Quad q = {};
    for (int c = 0; c < C; ++c) {
      q[c] = to_float(p[c * stride]);
    }
    return q;
  }
}

// R rows x C <= 4 columns.
template <int bits, class Scale, int R, int C>
static inline void int16_tile(const Matmul& p, int m, int n) {
  const int groups = p.K / p.w.group_size;
  const int blocks = p.w.group_size / kBlock;
  const size_t row_bytes = static_cast<size_t>(p.K / 8) * bits;
  const uint8_t* codes = static_cast<const uint8_t*>(p.w.data) + n * row_bytes;
  const Scale* scales = static_cast<const Scale*>(p.w.scales) + static_cast<size_t>(n) * groups;
  const Scale* biases = static_cast<const Scale*>(p.w.biases) + static_cast<size_t>(n) * groups;
  const int16_t* x = p.x_codes + static_cast<size_t>(m) * p.K;
  const float* x_scales = p.x_scales + static_cast<size_t>(m) * groups;
  const float* x_sums = p.x_sums + static_cast<size_t>(m) * groups;
  Quad y[R] = {};
  for (int g = 0; g < groups; ++g) {
    Sums sums[R][4];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < 4; ++c) {
        sums[r][c] = Sums::zero();
      }
    }
    for (int b = 0; b < blocks; ++b, codes += 4 * bits, x += kBlock) {
      for (int c = 0; c < C; ++c) {
        const Codes w = unpack_int16<bits>(codes + c * row_bytes);
        for (int r = 0; r < R; ++r) {
          sums[r][c].add_products(w, Inputs::load(x + static_cast<size_t>(r) * p.K));
        }
      }
    }
    const Quad scale = load_column<C>(scales + g, groups),
               bias = load_column<C>(biases + g, groups);
    for (int r = 0; r < R; ++r) {
      const size_t at = static_cast<size_t>(r) * groups + g;
      y[r] += scale * x_scales[at] * totals(sums[r]) + bias * x_sums[at];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      write(p, m + r, n + c, y[r][c]);
    }
  }
}

template <int bits, class Scale, int R>
static void int16_rows(const Matmul& p, int m, int n0, int n1) {
  constexpr int C = R <= 2 ? 4 : 2;  // eight sums in registers beside the codes
  int n = n0;
  for (; n + C <= n1; n += C) {
    int16_tile<bits, Scale, R, C>(p, m, n);
  }
  for (; n < n1; ++n) {
    int16_tile<bits, Scale, R, 1>(p, m, n);
  }
}

template <int bits, class Scale>
static void int16_columns(const Matmul& p, int m0, int m1, int n0, int n1) {
  int m = m0;
  for (; m + 4 <= m1; m += 4) {
    int16_rows<bits, Scale, 4>(p, m, n0, n1);
  }
  switch (m1 - m) {
    case 3:
      return int16_rows<bits, Scale, 3>(p, m, n0, n1);
    case 2:
      return int16_rows<bits, Scale, 2>(p, m, n0, n1);
    case 1:
      return int16_rows<bits, Scale, 1>(p, m, n0, n1);
    default:
      return;
  }
}

static void matmul_int16(const Matmul& p, int m0, int m1, int n0, int n1) {
  with_element(p.w.element, [&]<class Scale>(Scale) {
    with_bits(p.w.bits, [&]<int bits>() { int16_columns<bits, Scale>(p, m0, m1, n0, n1); });
  });
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
