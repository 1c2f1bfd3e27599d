// Schedules the gated delta rule, alone and with what GatedDeltaNet does around it, over threads.
#pragma once

#include "cpu/kernels.h"

namespace mixbit::cpu {

// q, k and v come in `element`, the type of y; everything else of `problem` is filled in.
void gated_delta(GatedDelta problem, const void* q, const void* k, const void* v, Element element);

struct Parameter {
  const void* data;
  Element element;
};

// The whole of GatedDeltaNet between its projections. `net` lacks its scratch and converted
// weights.
struct DeltaNetLayer {
  DeltaNet net;
  const float* a;  // gate pre-activations [B, T, net.layout.gate_step]
  const float* b;
  Parameter conv_weight;  // [C, taps]
  Parameter A_log;        // [Hv]
  Parameter dt_bias;      // [Hv]
  Parameter norm_weight;  // [Dv]
  const float* state_in;  // as in GatedDelta
  float* state_out;
  bool keep_steps;
  const int* lengths;    // [B], steps that each row really has, or null for T
  void* conv_state_out;  // [B, taps − 1, C]: the steps before each row's next one
};

void delta_net(const DeltaNetLayer& layer);

}  // namespace mixbit::cpu
