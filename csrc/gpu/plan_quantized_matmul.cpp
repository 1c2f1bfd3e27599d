// Launches of quantized_matmul.h on the GPU.
#include <algorithm>
#include <numeric>

#include "gpu/launch_plan.h"
#include "params.h"

namespace mixbit::gpu {

namespace {

using cpu::WeightKind;

int bits_of(const QuantizedMatmul::Part& part) {
  return part.format.kind == WeightKind::dense ? 8 * static_cast<int>(cpu::size_of(part.element))
                                               : part.format.bits;
}

// What a launch over all parts is given: buffers 1 x, 2 norm, 3 residual, then five a part.
struct Arguments {
  std::vector<Binding> buffers;
  MatvecParams params{};
  std::vector<std::string> formats;  // those that occur, as types of MSL
  uint32_t groups = 0;               // of columns, of all parts
};

// Parts come in this order, `columns` of their rows to a threadgroup.
Arguments arguments_of(const QuantizedMatmul& op, const std::vector<size_t>& order, int columns) {
  std::vector<uint32_t> first_input;  // of each part
  uint32_t inputs = 1;
  for (const auto& part : op.parts) {
    first_input.push_back(inputs);
    inputs += part.format.num_arrays() + part.bias.has_value();
  }

  using Role = Binding::Role;
  Arguments a;
  a.buffers = {{Role::input, 0, 1}};
  if (op.norm) {
    a.buffers.push_back({Role::input, inputs++, 2});
  }
  if (op.residual) {
    a.buffers.push_back({Role::input, inputs++, 3});
  }
  a.params.K = op.K;
  a.params.M = op.M;
  a.params.eps = op.eps;
  a.params.residual = element_code(op.residual);
  a.params.num_parts = static_cast<uint32_t>(op.parts.size());
  for (uint32_t slot = 0; slot < order.size(); ++slot) {
    const size_t i = order[slot];
    const auto& part = op.parts[i];
    const std::string format = msl_format(part.format, part.element);
    const auto known = std::find(a.formats.begin(), a.formats.end(), format);
    a.params.parts[slot] = {static_cast<uint32_t>(part.N), a.groups,
                            static_cast<uint32_t>(known - a.formats.begin()),
                            element_code(part.bias), element_code(part.y)};
    if (known == a.formats.end()) {
      a.formats.push_back(format);
    }
    if (!op.swiglu) {
      a.groups += ceil_div(part.N, columns);
    }
    const uint32_t base = 4 + 5 * slot;  // w, scales, biases, bias, y
    const uint32_t arrays = part.format.num_arrays();
    for (uint32_t k = 0; k < arrays; ++k) {
      a.buffers.push_back({Role::input, first_input[i] + k, base + k});
    }
    if (part.bias) {
      a.buffers.push_back({Role::input, first_input[i] + arrays, base + 3});
    }
    if (!op.swiglu || i == 0) {
      a.buffers.push_back({Role::output, static_cast<uint32_t>(i), base + 4});
    }
  }
  if (op.swiglu) {
    a.groups = ceil_div(op.parts[0].N, columns);
  }
  return a;
}

std::vector<size_t> parts_in_order(const QuantizedMatmul& op) {
  std::vector<size_t> order(op.parts.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// metal/matvec.metal: the weights are read once for each tile of up to kMatvecTile rows of x.
Launch matvec(const QuantizedMatmul& op) {
  const uint32_t tiles = ceil_div(op.M, kMatvecTile);
  const uint32_t tile_rows = ceil_div(op.M, tiles);  // tiles alike, rather than a short last one
  const uint32_t simdgroups = op.M == 1 ? kMatvecGroups : kMatvecTileGroups;
  // Both halves of a SIMD group have kMatvecRows rows of weights, which swiglu splits between gate
  // and up.
  const int columns = 2 * simdgroups * (op.swiglu ? kMatvecRows / 2 : kMatvecRows);

  // Long-running threadgroups first, so that the short ones fill the gaps at the end.
  std::vector<size_t> order = parts_in_order(op);
  if (!op.swiglu) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return bits_of(op.parts[a]) > bits_of(op.parts[b]);
    });
  }
  Arguments a = arguments_of(op, order, columns);

  std::vector<std::string> types{msl_type(op.x), std::to_string(tile_rows),
                                 op.norm ? msl_type(*op.norm) : "Absent",
                                 op.K % 32 == 0 ? "false" : "true"};
  types.insert(types.end(), a.formats.begin(), a.formats.end());
  Launch launch = make_launch("matvec", op.swiglu ? "matvec_swiglu" : "matvec", types);
  launch.threadgroups = {a.groups, tiles, 1};
  launch.threads = {32, simdgroups, 1};
  launch.buffers = std::move(a.buffers);
  set_params(launch, a.params);
  return launch;
}

// metal/qmm.metal: the matrix units, a tile of rows and columns a threadgroup.
Launch qmm(const QuantizedMatmul& op) {
  Arguments a = arguments_of(op, parts_in_order(op), op.swiglu ? kTileColumns / 2 : kTileColumns);
  std::vector<std::string> types{msl_type(op.x), op.norm ? msl_type(*op.norm) : "Absent",
                                 op.K % 8 == 0 ? "true" : "false"};
  types.insert(types.end(), a.formats.begin(), a.formats.end());
  if (op.swiglu && a.formats.size() == 1) {
    types.push_back(a.formats[0]);
  }
  Launch launch = make_launch("qmm", op.swiglu ? "qmm_swiglu" : "qmm", types);
  launch.threadgroups = {ceil_div(op.M, kTileRows), a.groups, 1};
  launch.threads = {kTileThreads, 1, 1};
  launch.buffers = std::move(a.buffers);
  set_params(launch, a.params);
  return launch;
}

}  // namespace

LaunchPlan launch_plan(const QuantizedMatmul& op, const Device&) {
  return {{op.M > kInvariantRows ? qmm(op) : matvec(op)}, {}};
}

}  // namespace mixbit::gpu
