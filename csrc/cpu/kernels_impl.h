// Every kernel over the Vec that the including file has chosen, as a table.
#pragma once

#include "cpu/attention_impl.h"
#include "cpu/column_pairs.h"
#include "cpu/delta_net_impl.h"
#include "cpu/gated_delta_impl.h"
#include "cpu/kl_divergence_impl.h"
#include "cpu/matmul_impl.h"
#include "cpu/matmul_int16_panel_impl.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

static constexpr Kernels table(const char* name) {
  // clang-format off: one a line
  return {
      name,
      convert_rows,
      rms_norm,
      matmul_direct,
      matmul_panel,
      quantize_rows,
      matmul_integers,
      matmul_int16_panel,
      gated_delta,
      delta_net_mix,
      delta_net_norm,
      swiglu,
      attention,
      logit_tile,
  };
  // clang-format on
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
