// The products of quantized_matmul.h for mixture-of-experts: each row block picks its weight from a
// stack of E.
#pragma once

#include <optional>
#include <vector>

#include "gpu/operation.h"
#include "mlx/primitives.h"
#include "quantized_matmul.h"
#include "weights.h"

namespace mixbit {

// x [..., M, K]; a stack of weights [E, N, K] without bias; indices [...] of an integer type,
// values in [0, E), broadcasting with x's leading dimensions. Returns [indices..., M, N] in x's
// dtype: row block i is x[i] · value(w[indices[i]])ᵀ, rounded once. An index out of range gives
// NaN.
//
// With scores, of the shape of indices, the blocks along the last dimension of indices are
// multiplied by them and added up in that order, before rounding: [indices[:-1]..., M, N].
MIXBIT_API mx::array gather_matmul(const mx::array& x, const Weight& w, const mx::array& indices,
                                   const std::optional<mx::array>& scores,
                                   mx::StreamOrDevice s = {});

// SiLU(x · gateᵀ) · (x · upᵀ) of the same expert, for two stacks of one shape: [indices..., M, N]
// in x's dtype, rounded once.
MIXBIT_API mx::array gather_swiglu(const mx::array& x, const Weight& gate, const Weight& up,
                                   const mx::array& indices, mx::StreamOrDevice s = {});

// Whether x has one block for all along the last dimension of the indices, not one for each.
bool shares_blocks(const mx::array& x, const mx::array& indices);

// Indices of a token: the last dimension, but a row of them with a block each, of blocks that are
// not mixed, is one of tokens.
int slots_of(const mx::array& x, const mx::array& indices, bool mixed);

// Inputs: x (with blocks for each index, or shared so), indices (uint32), scores (float32) if
// mixed, then each stack's arrays; all row-contiguous.
class GatherQuantizedMatmul : public mx::UnaryPrimitive, public gpu::Operation {
 public:
  enum class Epilogue { none, swiglu, mix };

  GatherQuantizedMatmul(mx::Stream stream, std::vector<QuantizedMatmul::Part> parts,
                        Epilogue epilogue)
      : mx::UnaryPrimitive(stream), parts_(std::move(parts)), epilogue_(epilogue) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

  // With respect to x and the scores.
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;

  gpu::Description describe(const std::vector<mx::array>& inputs,
                            const std::vector<mx::array>& outputs) const override;
  std::vector<mx::array> small_case(const std::vector<mx::array>& inputs,
                                    const std::vector<mx::array>& outputs,
                                    const gpu::Device& device, const mx::Stream& s) const override;

  const char* name() const override { return "MixbitGatherQuantizedMatmul"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  gpu::GatherQuantizedMatmul on_gpu(const std::vector<mx::array>& inputs) const;

  std::vector<QuantizedMatmul::Part> parts_;  // without biases
  Epilogue epilogue_;
};

}  // namespace mixbit
