// Launches of gather_quantized_matmul.h and route.h on the GPU.
#include <algorithm>

#include "gpu/launch_plan.h"
#include "params.h"
#include "route.h"

namespace mixbit::gpu {

namespace {

using Role = Binding::Role;

int rows_of(const GatherQuantizedMatmul& op) {
  return op.tokens * op.slots * op.M;
}

// Sorting pays where an expert has several rows to share its weights; a few tokens keep to the
// kernel whose rows do not depend on each other.
bool is_sorted(const GatherQuantizedMatmul& op) {
  return op.tokens * op.M > kInvariantRows && rows_of(op) >= 2 * op.experts &&
         op.experts <= kMaxExperts;
}

GatherParams params_of(const GatherQuantizedMatmul& op, cpu::Element y) {
  return {static_cast<uint32_t>(op.N),
          static_cast<uint32_t>(op.K),
          static_cast<uint32_t>(op.experts),
          static_cast<uint32_t>(op.slots),
          static_cast<uint32_t>(op.M),
          static_cast<uint32_t>(op.shared_x ? op.slots : 1),
          element_code(y)};
}

// The weights' arrays, at buffers 4 … 6 and with SwiGLU 9 … 11.
void bind_weights(const GatherQuantizedMatmul& op, Launch& launch) {
  uint32_t input = op.mix ? 3 : 2;
  for (size_t part = 0; part < op.parts.size(); ++part) {
    for (int a = 0; a < op.parts[part].format.num_arrays(); ++a) {
      launch.buffers.push_back({Role::input, input++, static_cast<uint32_t>(4 + 5 * part) + a});
    }
  }
}

// Template arguments: x's type, one of K, and the formats.
std::vector<std::string> types_of(const GatherQuantizedMatmul& op, bool about_K) {
  std::vector<std::string> types{msl_type(op.x), about_K ? "true" : "false"};
  for (const auto& part : op.parts) {
    types.push_back(msl_format(part.format, part.element));
  }
  return types;
}

// metal/gather_matvec.metal: every row reads its expert's weights for itself.
Launch gather_matvec(const GatherQuantizedMatmul& op) {
  const bool swiglu = op.parts.size() == 2;
  const std::string kernel = swiglu   ? "gather_matvec_swiglu"
                             : op.mix ? "gather_matvec_mix"
                                      : "gather_matvec";
  const int columns = 2 * kMatvecGroups * (swiglu ? kMatvecRows / 2 : kMatvecRows);
  Launch launch = make_launch("gather_matvec", kernel, types_of(op, op.K % 32 != 0));
  const int rows = op.mix ? op.tokens * op.M : rows_of(op);
  launch.threadgroups = {ceil_div(op.N, columns), static_cast<uint32_t>(rows), 1};
  launch.threads = {32, kMatvecGroups, 1};
  launch.buffers = {{Role::input, 0, 1}, {Role::input, 1, 2}};
  if (op.mix) {
    launch.buffers.push_back({Role::input, 2, 3});
  }
  bind_weights(op, launch);
  launch.buffers.push_back({Role::output, 0, 8});
  set_params(launch, params_of(op, op.x));
  return launch;
}

// Temporaries of a sorted product.
enum : uint32_t { kOrder, kTiles, kNumTiles, kProducts };

Launch sort_rows(const GatherQuantizedMatmul& op) {
  Launch launch = make_launch("experts", "sort_rows", {});
  launch.threadgroups = {1, 1, 1};
  launch.threads = {1024, 1, 1};
  launch.buffers = {{Role::input, 1, 1},
                    {Role::temporary, kOrder, 2},
                    {Role::temporary, kTiles, 3},
                    {Role::temporary, kNumTiles, 4}};
  set_params(launch,
             SortRowsParams{static_cast<uint32_t>(op.tokens * op.slots),
                            static_cast<uint32_t>(op.M), static_cast<uint32_t>(op.experts)});
  return launch;
}

// At most so many tiles have rows: every expert may have one that is not full.
int most_tiles(const GatherQuantizedMatmul& op) {
  return std::min(rows_of(op), rows_of(op) / kTileRows + op.experts + 1);
}

Launch gather_qmm(const GatherQuantizedMatmul& op) {
  const bool swiglu = op.parts.size() == 2;
  Launch launch = make_launch("gather_qmm", swiglu ? "gather_qmm_swiglu" : "gather_qmm",
                              types_of(op, op.K % 8 == 0));
  launch.threadgroups = {static_cast<uint32_t>(most_tiles(op)),
                         ceil_div(op.N, swiglu ? kTileColumns / 2 : kTileColumns), 1};
  launch.threads = {kTileThreads, 1, 1};
  launch.buffers = {{Role::input, 0, 1},
                    {Role::temporary, kOrder, 2},
                    {Role::temporary, kTiles, 3},
                    {Role::temporary, kNumTiles, 14}};
  bind_weights(op, launch);
  launch.buffers.push_back(op.mix ? Binding{Role::temporary, kProducts, 8}
                                  : Binding{Role::output, 0, 8});
  set_params(launch, params_of(op, op.mix ? cpu::Element::f32 : op.x));
  return launch;
}

Launch mix(const GatherQuantizedMatmul& op) {
  constexpr int kThreads = 256;
  Launch launch = make_launch("experts", "mix", {});
  launch.threadgroups = {ceil_div(op.M * op.N, kThreads), static_cast<uint32_t>(op.tokens), 1};
  launch.threads = {kThreads, 1, 1};
  launch.buffers = {{Role::temporary, kProducts, 1}, {Role::input, 2, 2}, {Role::output, 0, 3}};
  set_params(launch, MixParams{static_cast<uint32_t>(op.M * op.N), static_cast<uint32_t>(op.slots),
                               element_code(op.x)});
  return launch;
}

LaunchPlan sorted_plan(const GatherQuantizedMatmul& op) {
  LaunchPlan plan{
      {sort_rows(op), gather_qmm(op)},
      {rows_of(op) * sizeof(uint32_t), most_tiles(op) * sizeof(RowTile), sizeof(uint32_t)}};
  if (op.mix) {
    plan.launches.push_back(mix(op));
    plan.temporaries.push_back(sizeof(float) * rows_of(op) * op.N);
  }
  return plan;
}

}  // namespace

LaunchPlan launch_plan(const GatherQuantizedMatmul& op, const Device&) {
  return is_sorted(op) ? sorted_plan(op) : LaunchPlan{{gather_matvec(op)}, {}};
}

LaunchPlan launch_plan(const Route& op, const Device&) {
  Launch launch = make_launch("experts", "route",
                              {msl_type(op.logits), std::to_string(ceil_div(op.experts, 32))});
  launch.threadgroups = {static_cast<uint32_t>(op.tokens), 1, 1};
  launch.threads = {32, 1, 1};
  launch.buffers = {{Role::input, 0, 1}, {Role::output, 0, 2}, {Role::output, 1, 3}};
  set_params(launch, RouteParams{static_cast<uint32_t>(op.experts), static_cast<uint32_t>(op.slots),
                                 op.normalise});
  return {{launch}, {}};
}

}  // namespace mixbit::gpu
