// y = x · valueᵀ + bias for one or several weight matrices [N, K] that share x, packed or dense.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpu/operation.h"
#include "mlx/primitives.h"
#include "weights.h"

namespace mixbit {

// A weight matrix [N, K] with all that its product needs.
struct Weight {
  // Packed: w uint32 [N, K·bits/32], scales (and affine biases) [N, K/group_size]. Dense: w
  // floating [N, K] and no scales. bias [N] or none. The product comes in `dtype`, or x's without
  // one. activation_bits: what 16-bit x may be rounded to on a CPU, 16 or 8; the latter is for
  // affine weights of at most 6 bits and cpu::kIntegerDirectRows rows. Throws std::invalid_argument
  // for a format that MLX does not have, and for other activation_bits.
  MIXBIT_API Weight(const mx::array& w, const std::optional<mx::array>& scales,
                    const std::optional<mx::array>& biases, const std::optional<mx::array>& bias,
                    int group_size, int bits, const std::string& mode,
                    const std::optional<mx::Dtype>& dtype, int activation_bits = 16);

  WeightFormat format;
  std::vector<mx::array> arrays;
  std::optional<mx::array> bias;
  std::optional<mx::Dtype> dtype;
  int activation_bits;
};

// x [..., K] -> [..., N] for each weight: fp32 accumulation, rounded once. A residual [..., N] is
// added to the product of a single weight before that.
MIXBIT_API std::vector<mx::array> matmul(const mx::array& x, const std::vector<Weight>& weights,
                                         const std::optional<Norm>& norm = {},
                                         const std::optional<mx::array>& residual = {},
                                         mx::StreamOrDevice s = {});

// SiLU(x · gateᵀ) · (x · upᵀ), two weights of one shape: [..., N] in x's dtype, rounded once.
MIXBIT_API mx::array swiglu(const mx::array& x, const Weight& gate, const Weight& up,
                            const std::optional<Norm>& norm = {}, mx::StreamOrDevice s = {});

// Inputs: x, then for each weight its arrays and its bias if it has one, then the norm's weight and
// the residual where there are such; all row-contiguous.
class QuantizedMatmul : public mx::Primitive, public gpu::Operation {
 public:
  struct Part {
    WeightFormat format;
    bool has_bias;
    int activation_bits = 16;

    bool operator==(const Part&) const = default;
    int num_arrays() const { return format.num_arrays() + has_bias; }
  };

  // What the product is fused with.
  struct Fusion {
    bool swiglu = false, norm = false, residual = false;
    float eps = 0;  // of the norm

    bool operator==(const Fusion&) const = default;
  };

  QuantizedMatmul(mx::Stream stream, std::vector<Part> parts, Fusion fusion)
      : mx::Primitive(stream), parts_(std::move(parts)), fusion_(fusion) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

  // With respect to all but packed weights, which are frozen.
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;

  gpu::Description describe(const std::vector<mx::array>& inputs,
                            const std::vector<mx::array>& outputs) const override;
  std::vector<mx::array> small_case(const std::vector<mx::array>& inputs,
                                    const std::vector<mx::array>& outputs,
                                    const gpu::Device& device, const mx::Stream& s) const override;

  const char* name() const override { return "MixbitQuantizedMatmul"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  gpu::QuantizedMatmul on_gpu(const std::vector<mx::array>& inputs,
                              const std::vector<mx::array>& outputs) const;

  std::vector<Part> parts_;
  Fusion fusion_;
};

}  // namespace mixbit
