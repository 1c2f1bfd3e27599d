// QuantizedMatmul on a Metal GPU.
#include <algorithm>

#include "gpu/key.h"
#include "gpu/trial.h"
#include "params.h"
#include "quantized_matmul.h"

namespace mixbit {

namespace {

gpu::Description description(const gpu::QuantizedMatmul& op) {
  gpu::Key key("matmul");
  key.add(op.M, op.K, op.x, op.swiglu, op.norm, op.eps, op.residual);
  for (const auto& part : op.parts) {
    key.add(part.format.kind, part.format.bits, part.format.group_size, part.element, part.N,
            part.bias, part.y);
  }
  const bool has_kernel =
      op.M != 0 && op.parts.size() <= MIXBIT_MAX_PARTS &&
      std::none_of(op.parts.begin(), op.parts.end(), [](const auto& part) { return part.N == 0; });
  return {key.text(), [op, has_kernel](const gpu::Device& device) {
            return has_kernel ? launch_plan(op, device) : gpu::LaunchPlan{};
          }};
}

// The operation on fewer rows and columns, as long as the same kernels run.
gpu::QuantizedMatmul smaller(const gpu::QuantizedMatmul& op, const gpu::Device& device) {
  for (const auto& [few_rows, few_columns] :
       {std::pair{true, true}, {false, true}, {true, false}}) {
    gpu::QuantizedMatmul small = op;
    if (few_rows) {
      small.M = std::min(op.M, gpu::kTrialRows);
    }
    for (auto& part : small.parts) {
      part.N = few_columns ? std::min(part.N, gpu::kTrialColumns) : part.N;
    }
    if (same_kernels(launch_plan(small, device), launch_plan(op, device))) {
      return small;
    }
  }
  return op;
}

}  // namespace

gpu::QuantizedMatmul QuantizedMatmul::on_gpu(const std::vector<mx::array>& inputs,
                                             const std::vector<mx::array>& outputs) const {
  const mx::array& x = inputs[0];
  gpu::QuantizedMatmul op{};
  op.K = x.shape(-1);
  op.M = static_cast<int>(outputs[0].size() / std::max(outputs[0].shape(-1), 1));
  op.x = element_of(x.dtype());
  op.swiglu = fusion_.swiglu;
  op.eps = fusion_.eps;
  const mx::array* a = &inputs[1];
  for (size_t i = 0; i < parts_.size(); ++i) {
    gpu::QuantizedMatmul::Part part{};
    part.format = parts_[i].format;
    part.element = weight_element(part.format, a);
    part.N = a[0].shape(0);
    if (parts_[i].has_bias) {
      part.bias = element_of(a[part.format.num_arrays()].dtype());
    }
    part.y = element_of(outputs[fusion_.swiglu ? 0 : i].dtype());
    op.parts.push_back(part);
    a += parts_[i].num_arrays();
  }
  if (fusion_.norm) {
    op.norm = element_of((a++)->dtype());
  }
  if (fusion_.residual) {
    op.residual = element_of(a->dtype());
  }
  return op;
}

gpu::Description QuantizedMatmul::describe(const std::vector<mx::array>& inputs,
                                           const std::vector<mx::array>& outputs) const {
  return description(on_gpu(inputs, outputs));
}

std::vector<mx::array> QuantizedMatmul::small_case(const std::vector<mx::array>& inputs,
                                                   const std::vector<mx::array>& outputs,
                                                   const gpu::Device& device,
                                                   const mx::Stream& s) const {
  const gpu::QuantizedMatmul op = smaller(on_gpu(inputs, outputs), device);
  gpu::Noise noise;
  std::vector<mx::array> noises{noise.rows({op.M, op.K}, inputs[0].dtype())};
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (size_t i = 0; i < op.parts.size(); ++i) {
    const auto& part = op.parts[i];
    for (mx::array& a : noise.weight(part.format, dtype_of(part.element), {part.N, op.K})) {
      noises.push_back(std::move(a));
    }
    if (part.bias) {
      noises.push_back(noise.values({part.N}, dtype_of(*part.bias)));
    }
    if (i < outputs.size()) {
      shapes.push_back({op.M, part.N});
      dtypes.push_back(outputs[i].dtype());
    }
  }
  if (op.norm) {
    noises.push_back(noise.rows({op.K}, dtype_of(*op.norm)));
  }
  if (op.residual) {
    noises.push_back(noise.values(shapes[0], dtype_of(*op.residual)));
  }
  return mx::array::make_arrays(std::move(shapes), dtypes,
                                std::make_shared<QuantizedMatmul>(s, parts_, fusion_),
                                std::move(noises));
}

void QuantizedMatmul::eval_gpu(const std::vector<mx::array>& inputs,
                               std::vector<mx::array>& outputs) {
  gpu::run(describe(inputs, outputs), stream(), inputs, outputs);
}

}  // namespace mixbit
