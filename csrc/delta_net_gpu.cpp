// DeltaNet on a Metal GPU.
#include <algorithm>

#include "delta_net.h"
#include "gpu/key.h"
#include "gpu/trial.h"
#include "mlx/transforms.h"

namespace mixbit {

namespace {

// The operation with few rows and heads, as long as the same kernels run: nothing of a kernel
// depends on how many there are, nor on how many steps beyond a tile or chunk of them.
gpu::DeltaNet smaller(gpu::DeltaNet op, const gpu::Device& device) {
  const gpu::DeltaNet all = op;
  op.B = std::min(op.B, 2);
  op.Hv = op.Hv / op.Hk * std::min(op.Hk, 2);
  op.Hk = std::min(op.Hk, 2);
  op.T = std::min(op.T, gpu::kTrialRows);
  return same_kernels(launch_plan(op, device), launch_plan(all, device)) ? op : all;
}

}  // namespace

gpu::DeltaNet DeltaNet::on_gpu(const std::vector<mx::array>& inputs,
                               const std::vector<mx::array>& outputs) const {
  const mx::array& y = outputs[0];
  const mx::array& state = outputs[2];
  return {.B = y.shape(0),
          .T = y.shape(1),
          .Hk = num_k_heads_,
          .Hv = state.shape(-3),
          .Dk = state.shape(-1),
          .Dv = state.shape(-2),
          .taps = inputs[4].shape(1),
          .interleaved = interleaved_,
          .x = element_of(y.dtype()),
          .conv_weight = element_of(inputs[4].dtype()),
          .A_log = element_of(inputs[5].dtype()),
          .dt_bias = element_of(inputs[6].dtype()),
          .norm_weight = element_of(inputs[7].dtype()),
          .conv = present_.conv,
          .recurrent = present_.recurrent,
          .mask = present_.mask,
          .lengths = present_.lengths,
          .keep_steps = keep_steps_,
          .eps = eps_};
}

gpu::Description DeltaNet::describe(const std::vector<mx::array>& inputs,
                                    const std::vector<mx::array>& outputs) const {
  const gpu::DeltaNet op = on_gpu(inputs, outputs);
  gpu::Key key("delta_net");
  key.add(op.B, op.T, op.Hk, op.Hv, op.Dk, op.Dv, op.taps, op.interleaved, op.x, op.conv_weight,
          op.A_log, op.dt_bias, op.norm_weight, op.conv, op.recurrent, op.mask, op.lengths,
          op.keep_steps, op.eps);
  gpu::Description description{key.text(), [op](const gpu::Device& device) {
                                 const bool nothing = op.B == 0 || op.T == 0 || op.taps == 1;
                                 return nothing ? gpu::LaunchPlan{} : launch_plan(op, device);
                               }};
  if (op.recurrent && !op.keep_steps) {
    description.in_place = {.input = op.conv ? size_t{9} : 8, .output = 2};
  }
  return description;
}

std::vector<mx::array> DeltaNet::small_case(const std::vector<mx::array>& inputs,
                                            const std::vector<mx::array>& outputs,
                                            const gpu::Device& device, const mx::Stream& s) const {
  const gpu::DeltaNet op = smaller(on_gpu(inputs, outputs), device);
  const int C = 2 * op.Hk * op.Dk + op.Hv * op.Dv, gates = (op.interleaved ? 2 : 1) * op.Hv;
  const mx::Dtype x = inputs[0].dtype();
  gpu::Noise noise;
  const mx::array qkv = noise.values({op.B, op.T, op.interleaved ? C + op.Hv * op.Dv : C}, x);
  const mx::array a = noise.values({op.B, op.T, gates}, mx::float32);
  std::vector<mx::array> noises{qkv,
                                op.interleaved ? qkv : noise.values({op.B, op.T, op.Hv * op.Dv}, x),
                                a,
                                op.interleaved ? a : noise.values({op.B, op.T, op.Hv}, mx::float32),
                                noise.values({C, op.taps, 1}, inputs[4].dtype()),
                                noise.values({op.Hv}, inputs[5].dtype()),
                                noise.values({op.Hv}, inputs[6].dtype()),
                                noise.values({op.Dv}, inputs[7].dtype())};
  if (op.conv) {
    noises.push_back(noise.values({op.B, op.taps - 1, C}, x));
  }
  if (op.recurrent) {
    noises.push_back(noise.values({op.B, op.Hv, op.Dv, op.Dk}, mx::float32));
  }
  if (op.mask) {
    noises.push_back(
        mx::less(noise.values({op.B, op.T}, mx::float32), mx::array(0.5f), mx::Device::cpu));
  }
  if (op.lengths) {
    noises.push_back(mx::astype(noise.integers({op.B}, op.T + 1), mx::int32, mx::Device::cpu));
  }
  mx::eval(noises);
  const auto primitive =
      std::make_shared<DeltaNet>(s, interleaved_, present_, op.Hk, eps_, keep_steps_);
  auto shapes = primitive->output_shapes(noises);
  return mx::array::make_arrays(std::move(shapes), {x, x, mx::float32}, primitive,
                                std::move(noises));
}

void DeltaNet::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  release_inputs_of_siblings(inputs, outputs);
  gpu::run(describe(inputs, outputs), stream(), inputs, outputs);
}

}  // namespace mixbit
