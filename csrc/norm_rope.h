// RMSNorm of heads, then rotary position embedding of their first values.
#pragma once

#include <optional>
#include <variant>

#include "mlx/primitives.h"
#include "weights.h"

namespace mixbit {

// Position of the first step: one for all rows, or int32 [B].
using RopeOffset = std::variant<int, mx::array>;

// x [B, T, H, D] of a floating dtype, any strides; norm weight [D]. With n = x · weight /
// √(mean x² + eps), values i and i + dims/2 of a head turn by (offset + t) · scale ·
// base^(−2i/dims) for i < dims/2; the others stay. Returns [B, H, T, D] in x's dtype: fp32 inside,
// rounded once.
MIXBIT_API mx::array norm_rope(const mx::array& x, const Norm& norm, int dims, float base,
                               float scale, const RopeOffset& offset, mx::StreamOrDevice s = {});

struct Rotation {
  int dims;
  float base, scale;
  int offset;  // where no array tells it

  bool operator==(const Rotation&) const = default;
};

// Inputs: x, the norm's weight, then the offsets if they are an array. Output: [B, H, T, D].
class NormRope : public mx::UnaryPrimitive {
 public:
  NormRope(mx::Stream stream, float eps, Rotation rotation)
      : mx::UnaryPrimitive(stream), eps_(eps), rotation_(rotation) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

  // With respect to x and the weight, through MLX's own operations: for training, not for speed.
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;

  const char* name() const override { return "MixbitNormRope"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  float eps_;
  Rotation rotation_;
};

}  // namespace mixbit
