// The matmul of quantized_matmul.h for mixture-of-experts: each row picks its weight from a stack.
#pragma once

#include <optional>
#include <string>

#include "mlx/primitives.h"
#include "weights.h"

namespace mixbit {

// x [..., M, K]; w [E, N, ·] with scales and biases alike; indices [...] of an integer type, values
// in [0, E), broadcasting with x's leading dimensions. Returns [indices..., M, N] in x's dtype: row
// block i is x[i] · value(w[indices[i]])ᵀ. An index out of range gives NaN.
MIXBIT_API mx::array gather_quantized_matmul(const mx::array& x, const mx::array& w,
                                             const mx::array& scales,
                                             const std::optional<mx::array>& biases,
                                             const mx::array& indices, int group_size, int bits,
                                             const std::string& mode, mx::StreamOrDevice s = {});

// The same for dense weights [E, N, K].
MIXBIT_API mx::array gather_linear(const mx::array& x, const mx::array& w, const mx::array& indices,
                                   mx::StreamOrDevice s = {});

// Inputs: x, indices (uint32), the weight's arrays; all row-contiguous.
class GatherQuantizedMatmul : public mx::UnaryPrimitive {
 public:
  GatherQuantizedMatmul(mx::Stream stream, WeightFormat format)
      : mx::UnaryPrimitive(stream), format_(format) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

  // With respect to x.
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;

  const char* name() const override { return "MixbitGatherQuantizedMatmul"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  WeightFormat format_;
};

}  // namespace mixbit
