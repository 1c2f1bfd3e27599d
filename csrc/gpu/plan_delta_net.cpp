// Launches of delta_net.h on the GPU.
#include <algorithm>
#include <climits>
#include <iterator>

#include "gpu/launch_plan.h"
#include "params.h"

namespace mixbit::gpu {

namespace {

using Role = Binding::Role;

uint32_t present(const DeltaNet& op) {
  return op.conv * kConvState + op.recurrent * kRecurrentState + op.mask * kMask +
         op.lengths * kLengths;
}

DeltaNetParams params_of(const DeltaNet& op) {
  return {static_cast<uint32_t>(op.T),
          static_cast<uint32_t>(op.Hk),
          static_cast<uint32_t>(op.Hv),
          static_cast<uint32_t>(op.Dk),
          static_cast<uint32_t>(op.Dv),
          static_cast<uint32_t>(op.Hv / op.Hk),
          present(op),
          element_code(op.A_log),
          element_code(op.dt_bias),
          element_code(op.norm_weight),
          op.eps,
          delta_net_layout(op.interleaved, op.Hk, op.Hv, op.Dk, op.Dv)};
}

enum : uint32_t { kKeys, kFactors };  // temporaries

// Those of `wanted` that there are. Inputs have buffers 1 … 12 in the primitive's order, outputs 13
// … 15, temporaries 16 and 17.
std::vector<Binding> buffers_of(const DeltaNet& op, const std::vector<uint32_t>& wanted) {
  std::vector<Binding> all;
  uint32_t input = 0, buffer = 1;
  for (bool there : {true, true, true, true, true, true, true, true, op.conv, op.recurrent, op.mask,
                     op.lengths}) {
    if (there) {
      all.push_back({Role::input, input++, buffer});
    }
    ++buffer;
  }
  for (uint32_t i = 0; i < 3; ++i) {
    all.push_back({Role::output, i, buffer++});
  }
  all.push_back({Role::temporary, kKeys, buffer++});
  all.push_back({Role::temporary, kFactors, buffer++});
  std::vector<Binding> buffers;
  std::copy_if(all.begin(), all.end(), std::back_inserter(buffers), [&](const Binding& b) {
    return std::find(wanted.begin(), wanted.end(), b.buffer) != wanted.end();
  });
  return buffers;
}

std::string boolean(bool value) {
  return value ? "true" : "false";
}

// Template arguments of a kernel that convolves, before others.
std::vector<std::string> convolution(const DeltaNet& op, const std::vector<std::string>& others) {
  std::vector<std::string> arguments{msl_type(op.x), msl_type(op.conv_weight),
                                     std::to_string(op.taps)};
  arguments.insert(arguments.end(), others.begin(), others.end());
  return arguments;
}

std::array<uint32_t, 3> value_heads(const DeltaNet& op) {
  return {static_cast<uint32_t>(op.Hv / op.Hk), static_cast<uint32_t>(op.Hk),
          static_cast<uint32_t>(op.B)};
}

Launch launch_of(const DeltaNet& op, const std::string& family, const std::string& kernel,
                 const std::vector<std::string>& arguments, const std::vector<uint32_t>& buffers) {
  Launch launch = make_launch(family, kernel, arguments);
  launch.buffers = buffers_of(op, buffers);
  set_params(launch, params_of(op));
  return launch;
}

// Step by step; `made`: with q and k of keys().
Launch steps(const DeltaNet& op, bool made) {
  std::vector<uint32_t> buffers{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  if (made) {
    buffers.push_back(16);
  }
  Launch launch = launch_of(
      op, "delta_net", "delta_net",
      convolution(op, {std::to_string(ceil_div(op.Dv, 32)), std::to_string(ceil_div(op.Dk, 32)),
                       boolean(op.Dv % 32 == 0 && op.Dk % 32 == 0),
                       std::to_string(op.T == 1 ? 1 : static_cast<int>(kDeltaSteps)),
                       boolean(op.keep_steps), boolean(made)}),
      buffers);
  launch.threadgroups = value_heads(op);
  launch.threads = {kDeltaThreads, 1, 1};
  return launch;
}

Launch keys(const DeltaNet& op) {
  Launch launch =
      launch_of(op, "delta_net_chunks", "delta_net_keys",
                convolution(op, {std::to_string(ceil_div(op.Dk, 32))}), {1, 5, 9, 11, 12, 14, 16});
  launch.threadgroups = {ceil_div(op.T, kKeyGroups * kKeyRun), static_cast<uint32_t>(2 * op.Hk),
                         static_cast<uint32_t>(op.B)};
  launch.threads = {32 * kKeyGroups, 1, 1};
  return launch;
}

Launch factors(const DeltaNet& op) {
  Launch launch = launch_of(op, "delta_net_chunks", "delta_net_factors",
                            {std::to_string(op.Dk / 8)}, {3, 4, 6, 7, 11, 16, 17});
  launch.threadgroups = {ceil_div(op.T, kChunk), static_cast<uint32_t>(op.Hk),
                         static_cast<uint32_t>(op.B)};
  launch.threads = {32, 1, 1};
  return launch;
}

Launch chunks(const DeltaNet& op) {
  Launch launch = launch_of(op, "delta_net_chunks", "delta_net_chunks",
                            convolution(op, {std::to_string(op.Dk / 8), std::to_string(op.Dv / 8)}),
                            {1, 2, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17});
  launch.threadgroups = value_heads(op);
  launch.threads = {static_cast<uint32_t>(4 * op.Dv), 1, 1};
  return launch;
}

// ---- the choice ---------------------------------------------------------------------------------

enum class Kernels { one_launch, keys_and_steps, chunks };

struct Choice {
  int steps;      // up to so many
  int key_dim;    // and up to this
  int value_dim;  // and this,
  int multiple;   // both multiples of it
  Kernels kernels;
};

// The first row that fits; none: stock MLX. A chunk of 16 steps costs as much as seven steps one by
// one (bench/metal_delta_net.py), whatever the number of heads, but two launches more.
constexpr Choice kChoices[] = {
    {16, 256, 256, 1, Kernels::one_launch},
    {INT_MAX, 128, 128, 8, Kernels::chunks},
    {INT_MAX, 256, 256, 1, Kernels::keys_and_steps},
};

}  // namespace

LaunchPlan launch_plan(const DeltaNet& op, const Device&) {
  const auto choice = std::find_if(std::begin(kChoices), std::end(kChoices), [&](const Choice& c) {
    return op.T <= c.steps && op.Dk <= c.key_dim && op.Dv <= c.value_dim &&
           op.Dk % c.multiple == 0 && op.Dv % c.multiple == 0 &&
           !(op.keep_steps && c.kernels == Kernels::chunks);
  });
  if (choice == std::end(kChoices)) {
    return {};
  }
  const size_t key_bytes = sizeof(float) * op.B * op.T * 2 * op.Hk * op.Dk;
  switch (choice->kernels) {
    case Kernels::one_launch:
      return {{steps(op, false)}, {}};
    case Kernels::keys_and_steps:
      return {{keys(op), steps(op, true)}, {key_bytes}};
    default:
      return {{keys(op), factors(op), chunks(op)},
              {key_bytes, sizeof(ChunkFactors) * op.B * op.Hv * ceil_div(op.T, kChunk)}};
  }
}

}  // namespace mixbit::gpu
