// Packed affine weights that lie close to the weights where it matters, by a search over scales.
#pragma once

#include <optional>
#include <tuple>

#include "mlx/primitives.h"
#include "weights.h"

namespace mixbit {

// w [..., N, K] floating -> codes uint32 [..., N, K · bits / 32], scales and biases
// [..., N, K / group_size] of `dtype`, in MLX's affine format. importance [..., K], not negative,
// weighs the squared error of each input channel; without it all count alike. w must be finite.
MIXBIT_API std::tuple<mx::array, mx::array, mx::array> quantize_search(
    const mx::array& w, const std::optional<mx::array>& importance, int group_size, int bits,
    mx::Dtype dtype, mx::StreamOrDevice s = {});

// Inputs: w and perhaps the importance in fp32, row-contiguous. Outputs: codes, scales,
// biases.
class QuantizeSearch : public mx::Primitive {
 public:
  QuantizeSearch(mx::Stream stream, int group_size, int bits)
      : mx::Primitive(stream), group_size_(group_size), bits_(bits) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

  const char* name() const override { return "MixbitQuantizeSearch"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  int group_size_, bits_;
};

}  // namespace mixbit
