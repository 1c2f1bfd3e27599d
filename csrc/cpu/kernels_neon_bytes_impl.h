// The integer products over vec_neon_bytes.h as a table, everything else from neon's.
#pragma once

// clang-format off: Vec comes before the kernels that are written over it
#include "cpu/vec_neon_bytes.h"
#include "cpu/matmul_int16_panel_impl.h"
// clang-format on

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

template <int bits>
static void split_units(int16_t* q, size_t count) {
  for (int16_t* unit = q; unit < q + count; unit += kUnit) {
    uint8_t high[kUnit], low[kUnit];
    for (int i = 0; i < kUnit; ++i) {
      high[i] = static_cast<uint8_t>((unit[i] >> 8) + (high_is_biased(bits) ? 128 : 0));
      low[i] = static_cast<uint8_t>(unit[i]);
    }
    uint8_t* bytes = reinterpret_cast<uint8_t*>(unit);
    __builtin_memcpy(bytes, high, kUnit);
    __builtin_memcpy(bytes + kUnit, low, kUnit);
  }
}

static void quantize_rows_to_bytes(const float* x, size_t x_stride, int rows, int K, int group,
                                   int bits, int x_bits, void* q, float* scales, float* sums) {
  quantize_rows(x, x_stride, rows, K, group, bits, x_bits, q, scales, sums);
  if (x_bits == 16) {
    with_bits(bits, [&]<int width>() {
      const size_t count = static_cast<size_t>(rows) * integer_columns(K, group);
      split_units<width>(static_cast<int16_t*>(q), count);
    });
  }
}

static Kernels table(const char* name) {
  Kernels k = neon_kernels;
  k.name = name;
  k.quantize_rows = quantize_rows_to_bytes;
  k.matmul_integers = matmul_integers;
  k.matmul_int16_panel = matmul_int16_panel;
  return k;
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
