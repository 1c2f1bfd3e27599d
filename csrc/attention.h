// softmax(scale · q kᵀ + mask) v with grouped heads.
#pragma once

#include <optional>

#include "mlx/primitives.h"
#include "weights.h"

namespace mixbit {

// q [B, H, T, D], k and v [B, Hk, S, D] of one floating dtype, H a multiple of Hk, any strides.
// mask: bool (true = seen) or floating (added), broadcasting to [B, H, T, S]; causal: step t sees
// the keys up to t + S − T. gate [B, T, H, D] of q's dtype, any strides: the result is multiplied
// by its sigmoid. Returns [B, T, H, D] in q's dtype: fp32 inside, rounded once. A row that may see
// nothing is 0.
MIXBIT_API mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v,
                               float scale, bool causal, const std::optional<mx::array>& mask,
                               const std::optional<mx::array>& gate, mx::StreamOrDevice s = {});

// Inputs: q, k, v, then the mask and the gate where there are such. Output: [B, T, H, D].
class Attention : public mx::UnaryPrimitive {
 public:
  enum class Mask { none, causal, array };

  Attention(mx::Stream stream, float scale, Mask mask)
      : mx::UnaryPrimitive(stream), scale_(scale), mask_(mask) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

  // With respect to all but the mask, through MLX's own attention: for training, not for speed.
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;

  const char* name() const override { return "MixbitAttention"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  float scale_;
  Mask mask_;
};

}  // namespace mixbit
