// The choice of experts from a router's logits.
#pragma once

#include <utility>

#include "gpu/operation.h"
#include "mlx/primitives.h"
#include "weights.h"

namespace mixbit {

constexpr int kMaxExperts = 1023;
constexpr int kMaxSlots = 32;  // experts chosen for a token

// logits [..., E] -> uint32 indices [..., slots] of the largest, largest first and the earlier of
// equals first, and their softmax [..., slots] in fp32: over all E, or with `normalise` over the
// chosen ones. A NaN is never chosen; where there is nothing left to choose, the index is 2^32 − 1.
MIXBIT_API std::pair<mx::array, mx::array> route(const mx::array& logits, int slots, bool normalise,
                                                 mx::StreamOrDevice s = {});

// Input: logits, row-contiguous. Outputs: indices, scores.
class Route : public mx::Primitive, public gpu::Operation {
 public:
  Route(mx::Stream stream, int slots, bool normalise)
      : mx::Primitive(stream), slots_(slots), normalise_(normalise) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;

  gpu::Description describe(const std::vector<mx::array>& inputs,
                            const std::vector<mx::array>& outputs) const override;
  std::vector<mx::array> small_case(const std::vector<mx::array>& inputs,
                                    const std::vector<mx::array>& outputs,
                                    const gpu::Device& device, const mx::Stream& s) const override;

  const char* name() const override { return "MixbitRoute"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  gpu::Route on_gpu(const mx::array& logits) const;

  int slots_;
  bool normalise_;
};

}  // namespace mixbit
