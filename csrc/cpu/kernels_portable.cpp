#define MIXBIT_ISA_NAMESPACE portable

// clang-format off: Vec comes before the kernels that are written over it
#include "cpu/vec_portable.h"
#include "cpu/attention_impl.h"
#include "cpu/delta_net_impl.h"
#include "cpu/gated_delta_impl.h"
#include "cpu/kl_divergence_impl.h"
#include "cpu/matmul_impl.h"
#include "cpu/matmul_int16_impl.h"
// clang-format on

namespace mixbit::cpu {

const Kernels portable_kernels = {
    "portable",
    portable::convert_rows,
    portable::rms_norm,
    portable::matmul_direct,
    portable::matmul_panel,
    portable::quantize_rows,
    portable::matmul_int16,
    portable::gated_delta,
    portable::delta_net_mix,
    portable::delta_net_norm,
    portable::swiglu,
    portable::attention,
    portable::logit_tile,
};

}  // namespace mixbit::cpu
