// GatedDeltaNet between its projections: causal convolution, SiLU, normalised q and k, gates, the
// gated delta rule and the gated norm, as one operation.
#pragma once

#include <optional>
#include <tuple>

#include "gpu/operation.h"
#include "mlx/primitives.h"
#include "weights.h"

namespace mixbit {

struct DeltaNetState {
  std::optional<mx::array> conv;       // [B, taps − 1, C], the dtype of qkv; none for zeros
  std::optional<mx::array> recurrent;  // [B, Hv, Dv, Dk] float32; none for zeros
  std::optional<mx::array> mask;       // bool [B, T]; false: as if the step were not there
  std::optional<mx::array> lengths;    // int32 [B]: steps before each row's padding on the right
};

// qkv [B, T, C] with C = 2 Hk Dk + Hv Dv, and z [B, T, Hv Dv], of one floating dtype; a and b
// float32 [B, T, Hv]; conv_weight [C, taps, 1]; A_log and dt_bias [Hv]; norm_weight [Dv].
// Without z and b: qkv [B, T, C + Hv Dv] is q | k | v | z of each key head in turn, with its
// value heads' v and z, and a [B, T, 2 Hv] is b | a of each.
// Returns y [B, T, Hv Dv] in qkv's dtype, the convolution's next state, and the recurrent state,
// which with keep_steps is [B, T, Hv, Dv, Dk]: what it was after every step.
MIXBIT_API std::tuple<mx::array, mx::array, mx::array> delta_net(
    const mx::array& qkv, const std::optional<mx::array>& z, const mx::array& a,
    const std::optional<mx::array>& b, const mx::array& conv_weight, const mx::array& A_log,
    const mx::array& dt_bias, const mx::array& norm_weight, const DeltaNetState& state,
    int num_k_heads, float eps, bool keep_steps = false, mx::StreamOrDevice s = {});

// Inputs: the eight arrays above, qkv also for z and a also for b where they are interleaved, then
// those of the state that are there, in its order.
// Outputs: y, the convolution's state, the recurrent state. No gradients: layers train through MLX
// operations.
class DeltaNet : public mx::Primitive, public gpu::Operation {
 public:
  // Which arrays of DeltaNetState there are.
  struct Present {
    bool conv, recurrent, mask, lengths;

    bool operator==(const Present&) const = default;
  };

  DeltaNet(mx::Stream stream, bool interleaved, Present present, int num_k_heads, float eps,
           bool keep_steps)
      : mx::Primitive(stream),
        interleaved_(interleaved),
        present_(present),
        num_k_heads_(num_k_heads),
        eps_(eps),
        keep_steps_(keep_steps) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

  gpu::Description describe(const std::vector<mx::array>& inputs,
                            const std::vector<mx::array>& outputs) const override;
  std::vector<mx::array> small_case(const std::vector<mx::array>& inputs,
                                    const std::vector<mx::array>& outputs,
                                    const gpu::Device& device, const mx::Stream& s) const override;

  const char* name() const override { return "MixbitDeltaNet"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  gpu::DeltaNet on_gpu(const std::vector<mx::array>& inputs,
                       const std::vector<mx::array>& outputs) const;

  bool interleaved_;
  Present present_;
  int num_k_heads_;
  float eps_;
  bool keep_steps_;
};

}  // namespace mixbit
