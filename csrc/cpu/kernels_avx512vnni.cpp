// VNNI and VBMI serve the integer products; everything else is avx512's.
#define MIXBIT_ISA_NAMESPACE avx512vnni

// clang-format off: Vec comes before the kernels that are written over it
#include "cpu/vec_avx512.h"
#include "cpu/column_pairs.h"
#include "cpu/matmul_int16_panel_impl.h"
// clang-format on

namespace mixbit::cpu {

const Kernels& avx512vnni_kernels() {
  static const Kernels table = [] {
    Kernels k = avx512_kernels;
    k.name = "avx512vnni";
    k.quantize_rows = avx512vnni::quantize_rows;
    k.matmul_integers = avx512vnni::matmul_integers;
    k.matmul_int16_panel = avx512vnni::matmul_int16_panel;
    return k;
  }();
  return table;
}

}  // namespace mixbit::cpu
