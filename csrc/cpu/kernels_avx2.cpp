#define MIXBIT_ISA_NAMESPACE avx2

// clang-format off: Vec comes before the kernels that are written over it
#include "cpu/vec_avx2.h"
#include "cpu/attention_impl.h"
#include "cpu/delta_net_impl.h"
#include "cpu/gated_delta_impl.h"
#include "cpu/kl_divergence_impl.h"
#include "cpu/matmul_impl.h"
#include "cpu/matmul_int16_impl.h"
// clang-format on

namespace mixbit::cpu {

const Kernels avx2_kernels = {
    "avx2",
    avx2::convert_rows,
    avx2::rms_norm,
    avx2::matmul_direct,
    avx2::matmul_panel,
    avx2::quantize_rows,
    avx2::matmul_int16,
    avx2::gated_delta,
    avx2::delta_net_mix,
    avx2::delta_net_norm,
    avx2::swiglu,
    avx2::attention,
    avx2::logit_tile,
};

}  // namespace mixbit::cpu
