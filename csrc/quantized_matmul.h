// y = x · valueᵀ + bias for one weight matrix [N, K], packed or dense.
#pragma once

#include <optional>
#include <string>

#include "mlx/primitives.h"
#include "weights.h"

namespace mixbit {

// x [..., K], w uint32 [N, K·bits/32], scales (and affine biases) [N, K/group_size], bias [N].
// Returns [..., N] in x's dtype: fp32 accumulation, rounded once.
MIXBIT_API mx::array quantized_matmul(const mx::array& x, const mx::array& w,
                                      const mx::array& scales,
                                      const std::optional<mx::array>& biases,
                                      const std::optional<mx::array>& bias, int group_size,
                                      int bits, const std::string& mode, mx::StreamOrDevice s = {});

// The same for a dense weight [N, K] of any floating dtype.
MIXBIT_API mx::array linear(const mx::array& x, const mx::array& w,
                            const std::optional<mx::array>& bias, mx::StreamOrDevice s = {});

// Inputs: x, the weight's arrays, then the bias if there is one; all row-contiguous.
class QuantizedMatmul : public mx::UnaryPrimitive {
 public:
  QuantizedMatmul(mx::Stream stream, WeightFormat format, bool has_bias)
      : mx::UnaryPrimitive(stream), format_(format), has_bias_(has_bias) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

  // With respect to x and bias; packed weights are frozen.
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;

  const char* name() const override { return "MixbitQuantizedMatmul"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  WeightFormat format_;
  bool has_bias_;
};

}  // namespace mixbit
