// Route on a Metal GPU.
#include <algorithm>

#include "gpu/key.h"
#include "gpu/trial.h"
#include "route.h"

namespace mixbit {

gpu::Route Route::on_gpu(const mx::array& logits) const {
  const int experts = logits.shape(-1);
  return {static_cast<int>(logits.size() / experts), experts, slots_, normalise_,
          element_of(logits.dtype())};
}

gpu::Description Route::describe(const std::vector<mx::array>& inputs,
                                 const std::vector<mx::array>&) const {
  const gpu::Route op = on_gpu(inputs[0]);
  gpu::Key key("route");
  key.add(op.tokens, op.experts, op.slots, op.normalise, op.logits);
  return {key.text(), [op](const gpu::Device& device) {
            return op.tokens == 0 ? gpu::LaunchPlan{} : launch_plan(op, device);
          }};
}

std::vector<mx::array> Route::small_case(const std::vector<mx::array>& inputs,
                                         const std::vector<mx::array>& outputs, const gpu::Device&,
                                         const mx::Stream& s) const {
  const gpu::Route op = on_gpu(inputs[0]);
  const int tokens = std::min(op.tokens, gpu::kTrialRows);
  const mx::Shape shape{tokens, op.slots};
  gpu::Noise noise;
  return mx::array::make_arrays({shape, shape}, {outputs[0].dtype(), outputs[1].dtype()},
                                std::make_shared<Route>(s, slots_, normalise_),
                                {noise.values({tokens, op.experts}, inputs[0].dtype())});
}

void Route::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  gpu::run(describe(inputs, outputs), stream(), inputs, outputs);
}

}  // namespace mixbit
