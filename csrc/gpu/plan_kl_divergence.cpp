// The launch of kl_divergence.h on the GPU.
#include <algorithm>

#include "gpu/launch_plan.h"
#include "params.h"

namespace mixbit::gpu {

LaunchPlan launch_plan(const KlDivergence& op, const Device&) {
  using cpu::Element;
  using Role = Binding::Role;
  const bool shared = op.heads.size() == 1;
  const bool whole = std::all_of(op.heads.begin(), op.heads.end(),
                                 [](const auto& head) { return head.K % 8 == 0; });
  std::vector<std::string> types{msl_type(op.p), msl_type(op.q)};
  if (!shared) {
    types.push_back(msl_type(op.q == Element::f32 ? op.q : op.p));
  }
  types.push_back(whole ? "true" : "false");
  for (const auto& head : op.heads) {
    types.push_back(msl_format(head.format, head.element));
  }
  Launch launch =
      make_launch("kl_divergence", shared ? "kl_divergence_shared" : "kl_divergence", types);
  launch.threadgroups = {ceil_div(op.M, kTileRows), ceil_div(op.vocabulary, kVocabularySpan), 1};
  launch.threads = {kTileThreads, 1, 1};
  launch.buffers = {{Role::input, 0, 1}, {Role::input, 1, 2}, {Role::input, 2, 3}};
  KlDivergenceParams params{static_cast<uint32_t>(op.M), static_cast<uint32_t>(op.vocabulary), {}};
  uint32_t input = 3;
  for (uint32_t i = 0; i < op.heads.size(); ++i) {
    const auto& head = op.heads[i];
    const uint32_t base = 4 + 5 * i;  // w, scales, biases, bias
    params.heads[i] = {static_cast<uint32_t>(head.K), element_code(head.bias)};
    for (int k = 0; k < head.format.num_arrays(); ++k) {
      launch.buffers.push_back({Role::input, input++, base + k});
    }
    if (head.bias) {
      launch.buffers.push_back({Role::input, input++, base + 3});
    }
  }
  launch.buffers.push_back({Role::output, 0, 8});
  set_params(launch, params);
  return {{launch}, {}};
}

}  // namespace mixbit::gpu
