// How far two models' next-token distributions lie apart, from their last hidden states; logits are
// never stored.
#pragma once

#include <optional>

#include "gpu/operation.h"
#include "mlx/primitives.h"
#include "quantized_matmul.h"

namespace mixbit {

// p_hidden [T, K], q_hidden [T, K'], floating; heads [N, K] and [N', K'] packed or dense, with
// their biases; without q_head both models share p_head (and K' = K). targets int32 [T]: tokens
// whose logits are wanted. The softmax runs over tokens [0, vocabulary). Returns cpu::LogitTile as
// [T, tiles, kLogitFields], float64 (float32 on a GPU, with wider tiles), for the caller to merge:
// the tiles do not depend on T.
MIXBIT_API mx::array kl_divergence(const mx::array& p_hidden, const Weight& p_head,
                                   const mx::array& q_hidden, const std::optional<Weight>& q_head,
                                   const mx::array& targets, int vocabulary,
                                   mx::StreamOrDevice s = {});

// Inputs: p_hidden, q_hidden, targets, then p_head's arrays and its bias if it has one, and
// q_head's likewise if there is one; all row-contiguous.
class KlDivergence : public mx::UnaryPrimitive, public gpu::Operation {
 public:
  KlDivergence(mx::Stream stream, std::vector<QuantizedMatmul::Part> heads, int vocabulary)
      : mx::UnaryPrimitive(stream), heads_(std::move(heads)), vocabulary_(vocabulary) {}

  // What kl_divergence() returns, of inputs that fit.
  static mx::array tiles(const mx::Stream& stream, std::vector<QuantizedMatmul::Part> heads,
                         int vocabulary, std::vector<mx::array> inputs);

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

  gpu::Description describe(const std::vector<mx::array>& inputs,
                            const std::vector<mx::array>& outputs) const override;
  std::vector<mx::array> small_case(const std::vector<mx::array>& inputs,
                                    const std::vector<mx::array>& outputs,
                                    const gpu::Device& device, const mx::Stream& s) const override;

  const char* name() const override { return "MixbitKlDivergence"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  gpu::KlDivergence on_gpu(const std::vector<mx::array>& inputs) const;

  std::vector<QuantizedMatmul::Part> heads_;
  int vocabulary_;
};

}  // namespace mixbit
