// The gated delta rule of GatedDeltaNet:
//   S_t = g_t S_{t−1} + beta_t (v_t − g_t S_{t−1} k_t) k_tᵀ,   y_t = S_t q_t
#pragma once

#include <optional>
#include <utility>

#include "mlx/primitives.h"
#include "weights.h"

namespace mixbit {

// q, k [B, T, Hk, Dk] and v [B, T, Hv, Dv] of one floating dtype; g, beta [B, T, Hv] float32; state
// [B, Hv, Dv, Dk] float32 or none for zeros; mask bool [B, T] or none. Hv is a multiple of Hk, and
// key head i serves value heads i·Hv/Hk … (i+1)·Hv/Hk − 1. Returns y [B, T, Hv, Dv] in v's dtype
// and the state after the last step. Where the mask is false the state passes unchanged and y is 0.
MIXBIT_API std::pair<mx::array, mx::array> gated_delta(const mx::array& q, const mx::array& k,
                                                       const mx::array& v, const mx::array& g,
                                                       const mx::array& beta,
                                                       const std::optional<mx::array>& state,
                                                       const std::optional<mx::array>& mask,
                                                       mx::StreamOrDevice s = {});

// Inputs: q, k, v, g, beta, then the state and the mask where given. Outputs: y, state.
class GatedDelta : public mx::Primitive {
 public:
  GatedDelta(mx::Stream stream, bool has_state, bool has_mask)
      : mx::Primitive(stream), has_state_(has_state), has_mask_(has_mask) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

  // Through the same recurrence composed of MLX operations: for training, not for speed.
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;

  const char* name() const override { return "MixbitGatedDelta"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  bool has_state_;
  bool has_mask_;
};

}  // namespace mixbit
