// y = x · valueᵀ + bias for one or several weight matrices [N, K] that share x, packed or dense.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mlx/primitives.h"
#include "weights.h"

namespace mixbit {

// A weight matrix [N, K] with all that its product needs.
struct Weight {
  // Packed: w uint32 [N, K·bits/32], scales (and affine biases) [N, K/group_size]. Dense: w
  // floating [N, K] and no scales. bias [N] or none. The product comes in `dtype`, or x's without
  // one. Throws std::invalid_argument for a format that MLX does not have.
  MIXBIT_API Weight(const mx::array& w, const std::optional<mx::array>& scales,
                    const std::optional<mx::array>& biases, const std::optional<mx::array>& bias,
                    int group_size, int bits, const std::string& mode,
                    const std::optional<mx::Dtype>& dtype);

  WeightFormat format;
  std::vector<mx::array> arrays;
  std::optional<mx::array> bias;
  std::optional<mx::Dtype> dtype;
};

// x [..., K] -> [..., N] for each weight: fp32 accumulation, rounded once.
MIXBIT_API std::vector<mx::array> matmul(const mx::array& x, const std::vector<Weight>& weights,
                                         mx::StreamOrDevice s = {});

// SiLU(x · gateᵀ) · (x · upᵀ), two weights of one shape: [..., N] in x's dtype, rounded once.
MIXBIT_API mx::array swiglu(const mx::array& x, const Weight& gate, const Weight& up,
                            mx::StreamOrDevice s = {});

// Inputs: x, then for each weight its arrays and its bias if it has one; all row-contiguous.
class QuantizedMatmul : public mx::Primitive {
 public:
  struct Part {
    WeightFormat format;
    bool has_bias;

    bool operator==(const Part&) const = default;
    int num_arrays() const { return format.num_arrays() + has_bias; }
  };

  QuantizedMatmul(mx::Stream stream, std::vector<Part> parts, bool swiglu)
      : mx::Primitive(stream), parts_(std::move(parts)), swiglu_(swiglu) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

  // With respect to x, biases and dense weights; packed weights are frozen.
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;

  const char* name() const override { return "MixbitQuantizedMatmul"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  std::vector<Part> parts_;
  bool swiglu_;
};

}  // namespace mixbit
