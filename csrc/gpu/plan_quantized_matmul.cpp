// Launches of quantized_matmul.h on the GPU.
#include <algorithm>
#include <numeric>

#include "gpu/launch_plan.h"
#include "params.h"

namespace mixbit::gpu {

namespace {

using cpu::WeightKind;

uint32_t element_code(const std::optional<cpu::Element>& element) {
  if (!element) {
    return kAbsent;
  }
  return *element == cpu::Element::f32 ? kFloat : *element == cpu::Element::f16 ? kHalf : kBfloat;
}

// The part's format as a type of metal/dequantize.h.
std::string msl_format(const QuantizedMatmul::Part& part) {
  switch (part.format.kind) {
    case WeightKind::dense:
      return std::string("Dense<") + msl_type(part.element) + ">";
    case WeightKind::affine:
      return "Affine<" + std::to_string(part.format.bits) + ", " +
             std::to_string(part.format.group_size) + ", " + msl_type(part.element) + ">";
    case WeightKind::mxfp4:
      return "Mxfp4";
    case WeightKind::mxfp8:
      return "Mxfp8";
    default:
      return "Nvfp4";
  }
}

int bits_of(const QuantizedMatmul::Part& part) {
  return part.format.kind == WeightKind::dense ? 8 * static_cast<int>(cpu::size_of(part.element))
                                               : part.format.bits;
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
  std::vector<size_t> order(op.parts.size());
  std::iota(order.begin(), order.end(), 0);
  if (!op.swiglu) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return bits_of(op.parts[a]) > bits_of(op.parts[b]);
    });
  }

  std::vector<uint32_t> first_input;  // of each part
  uint32_t inputs = 1;
  for (const auto& part : op.parts) {
    first_input.push_back(inputs);
    inputs += part.format.num_arrays() + part.bias.has_value();
  }

  using Role = Binding::Role;
  std::vector<Binding> buffers{{Role::input, 0, 1}};
  if (op.norm) {
    buffers.push_back({Role::input, inputs++, 2});
  }
  if (op.residual) {
    buffers.push_back({Role::input, inputs++, 3});
  }
  MatvecParams params{};
  params.K = op.K;
  params.M = op.M;
  params.eps = op.eps;
  params.residual = element_code(op.residual);
  params.num_parts = static_cast<uint32_t>(op.parts.size());
  std::vector<std::string> formats;
  uint32_t groups = 0;
  for (uint32_t slot = 0; slot < order.size(); ++slot) {
    const size_t i = order[slot];
    const auto& part = op.parts[i];
    const std::string format = msl_format(part);
    const auto known = std::find(formats.begin(), formats.end(), format);
    params.parts[slot] = {static_cast<uint32_t>(part.N), groups,
                          static_cast<uint32_t>(known - formats.begin()), element_code(part.bias),
                          element_code(part.y)};
    if (known == formats.end()) {
      formats.push_back(format);
    }
    if (!op.swiglu) {
      groups += ceil_div(part.N, columns);
    }
    const uint32_t base = 4 + 5 * slot;  // w, scales, biases, bias, y
    const uint32_t arrays = part.format.num_arrays();
    for (uint32_t a = 0; a < arrays; ++a) {
      buffers.push_back({Role::input, first_input[i] + a, base + a});
    }
    if (part.bias) {
      buffers.push_back({Role::input, first_input[i] + arrays, base + 3});
    }
    if (!op.swiglu || i == 0) {
      buffers.push_back({Role::output, static_cast<uint32_t>(i), base + 4});
    }
  }
  if (op.swiglu) {
    groups = ceil_div(op.parts[0].N, columns);
  }

  std::vector<std::string> arguments{msl_type(op.x), std::to_string(tile_rows),
                                     op.norm ? msl_type(*op.norm) : "Absent",
                                     op.K % 32 == 0 ? "false" : "true"};
  arguments.insert(arguments.end(), formats.begin(), formats.end());
  Launch launch = make_launch("matvec", op.swiglu ? "matvec_swiglu" : "matvec", arguments);
  launch.threadgroups = {groups, tiles, 1};
  launch.threads = {32, simdgroups, 1};
  launch.buffers = std::move(buffers);
  set_params(launch, params);
  return launch;
}

}  // namespace

LaunchPlan launch_plan(const QuantizedMatmul& op, const Device&) {
  return {{matvec(op)}, {}};
}

}  // namespace mixbit::gpu
