// GatherQuantizedMatmul on a Metal GPU.
#include <algorithm>

#include "gather_quantized_matmul.h"
#include "gpu/key.h"
#include "gpu/trial.h"

namespace mixbit {

namespace {

gpu::Description description(const gpu::GatherQuantizedMatmul& op) {
  gpu::Key key("gather");
  key.add(op.tokens, op.slots, op.M, op.N, op.K, op.experts, op.shared_x, op.x, op.mix);
  for (const auto& part : op.parts) {
    key.add(part.format.kind, part.format.bits, part.format.group_size, part.element);
  }
  const bool empty = op.tokens == 0 || op.slots == 0 || op.M == 0 || op.N == 0;
  return {key.text(), [op, empty](const gpu::Device& device) {
            return empty ? gpu::LaunchPlan{} : launch_plan(op, device);
          }};
}

// The operation on fewer tokens, columns and experts, as long as the same kernels run.
gpu::GatherQuantizedMatmul smaller(const gpu::GatherQuantizedMatmul& op,
                                   const gpu::Device& device) {
  for (const auto& [few_tokens, few_columns, few_experts] :
       {std::array{true, true, true}, {true, true, false}, {false, true, false}}) {
    gpu::GatherQuantizedMatmul small = op;
    small.tokens = few_tokens ? std::min(op.tokens, gpu::kTrialRows) : op.tokens;
    small.N = few_columns ? std::min(op.N, gpu::kTrialColumns) : op.N;
    small.experts = few_experts ? std::min(op.experts, gpu::kTrialExperts) : op.experts;
    if (same_kernels(launch_plan(small, device), launch_plan(op, device))) {
      return small;
    }
  }
  return op;
}

}  // namespace

gpu::GatherQuantizedMatmul GatherQuantizedMatmul::on_gpu(
    const std::vector<mx::array>& inputs) const {
  const mx::array& x = inputs[0];
  const mx::array& indices = inputs[1];
  gpu::GatherQuantizedMatmul op{};
  op.mix = epilogue_ == Epilogue::mix;
  const mx::array* a = &inputs[op.mix ? 3 : 2];
  op.experts = a[0].shape(0);
  op.N = a[0].shape(-2);
  op.M = x.shape(-2);
  op.K = x.shape(-1);
  op.x = element_of(x.dtype());
  op.slots = slots_of(x, indices, op.mix);
  op.shared_x = shares_blocks(x, indices);
  op.tokens = static_cast<int>(indices.size() / std::max(op.slots, 1));
  for (const QuantizedMatmul::Part& part : parts_) {
    op.parts.push_back({part.format, weight_element(part.format, a)});
    a += part.num_arrays();
  }
  return op;
}

gpu::Description GatherQuantizedMatmul::describe(const std::vector<mx::array>& inputs,
                                                 const std::vector<mx::array>&) const {
  return description(on_gpu(inputs));
}

std::vector<mx::array> GatherQuantizedMatmul::small_case(const std::vector<mx::array>& inputs,
                                                         const std::vector<mx::array>&,
                                                         const gpu::Device& device,
                                                         const mx::Stream& s) const {
  const gpu::GatherQuantizedMatmul op = smaller(on_gpu(inputs), device);
  gpu::Noise noise;
  const mx::Shape chosen{op.tokens, op.slots};
  const mx::Dtype dtype = inputs[0].dtype();
  std::vector<mx::array> noises{
      noise.rows({op.tokens, op.shared_x ? 1 : op.slots, op.M, op.K}, dtype),
      noise.integers(chosen, op.experts)};
  if (op.mix) {
    noises.push_back(noise.values(chosen, mx::float32));
  }
  for (const auto& part : op.parts) {
    for (mx::array& a :
         noise.weight(part.format, dtype_of(part.element), {op.experts, op.N, op.K})) {
      noises.push_back(std::move(a));
    }
  }
  const mx::Shape shape =
      op.mix ? mx::Shape{op.tokens, op.M, op.N} : mx::Shape{op.tokens, op.slots, op.M, op.N};
  return {mx::array(shape, dtype, std::make_shared<GatherQuantizedMatmul>(s, parts_, epilogue_),
                    std::move(noises))};
}

void GatherQuantizedMatmul::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
  std::vector<mx::array> outputs{out};  // shares its description, so `out` gets the data too
  gpu::run(describe(inputs, outputs), stream(), inputs, outputs);
}

}  // namespace mixbit
