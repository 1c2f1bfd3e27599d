// The launch plans of gpu/launch_plan.h in Python, for tests and tables.
#include "bindings_gpu.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "gpu/operation.h"
#include "gpu/source.h"
#include "gpu/trial.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

namespace mixbit {

namespace {

std::optional<cpu::Element> element(const std::optional<mx::Dtype>& dtype) {
  return dtype ? std::optional(element_of(*dtype)) : std::nullopt;
}

const char* role_name(gpu::Binding::Role role) {
  switch (role) {
    case gpu::Binding::Role::input:
      return "input";
    case gpu::Binding::Role::output:
      return "output";
    default:
      return "temporary";
  }
}

}  // namespace

void bind_launch_plans(nb::module_& m) {
  using gpu::Launch;
  using gpu::LaunchPlan;
  using Part = gpu::QuantizedMatmul::Part;

  nb::exception<gpu::NoKernel>(m, "NoKernel", PyExc_RuntimeError);
  m.def("metal_source", &gpu::library_source, "folder"_a, "launch"_a,
        "What a device compiles for the launch, out of the files of metal/ in the folder.");

  nb::class_<Launch>(m, "Launch", "One launch of a Metal kernel: csrc/gpu/launch_plan.h.")
      .def_ro("family", &Launch::family, "File in metal/, without suffix.")
      .def_ro("kernel", &Launch::kernel)
      .def_ro("instantiation", &Launch::instantiation, "MSL that makes the kernel.")
      .def_ro("threadgroups", &Launch::threadgroups)
      .def_ro("threads", &Launch::threads, "Of one threadgroup.")
      .def_prop_ro(
          "buffers",
          [](const Launch& launch) {
            std::vector<std::pair<uint32_t, std::pair<std::string, uint32_t>>> buffers;
            for (const gpu::Binding& b : launch.buffers) {
              buffers.push_back({b.buffer, {role_name(b.role), b.index}});
            }
            return buffers;
          },
          "(buffer, (role, index)): role is 'input', 'output' or 'temporary'.")
      .def_prop_ro(
          "params",
          [](const Launch& launch) {
            return nb::bytes(launch.params.data(), launch.params.size());
          },
          "Bytes for buffer PARAMS_BUFFER.");
  m.attr("PARAMS_BUFFER") = gpu::kParamsBuffer;
  nb::class_<LaunchPlan>(m, "LaunchPlan")
      .def_ro("launches", &LaunchPlan::launches)
      .def_ro("temporaries", &LaunchPlan::temporaries, "Bytes of each.");

  nb::class_<Part>(m, "MatmulPart", "A weight [N, K] without its arrays; bits 0 is a dense one.")
      .def(
          "__init__",
          [](Part* self, int N, int bits, int group_size, const std::string& mode, mx::Dtype dtype,
             const std::optional<mx::Dtype>& bias, mx::Dtype out) {
            const WeightFormat format =
                bits == 0 ? kDense : packed_format("launch_plan", bits, group_size, mode);
            new (self) Part{format, element_of(dtype), N, element(bias), element_of(out)};
          },
          nb::kw_only(), "N"_a, "bits"_a = 4, "group_size"_a = 64, "mode"_a = "affine", "dtype"_a,
          "bias"_a = nb::none(), "out"_a);
  m.def(
      "launch_plan_matmul",
      [](int M, int K, mx::Dtype x, const std::vector<Part>& parts, bool swiglu,
         const std::optional<mx::Dtype>& norm, float eps, const std::optional<mx::Dtype>& residual,
         int generation, const std::string& size) {
        return gpu::launch_plan(gpu::QuantizedMatmul{M, K, element_of(x), parts, swiglu,
                                                     element(norm), eps, element(residual)},
                                {generation, size.at(0)});
      },
      nb::kw_only(), "M"_a, "K"_a, "x"_a, "parts"_a, "swiglu"_a = false, "norm"_a = nb::none(),
      "eps"_a = 0.f, "residual"_a = nb::none(), "generation"_a = 15, "size"_a = "s",
      "Launches of matmul and swiglu for x [M, K] of dtype `x`; `norm` and `residual` are dtypes.");

  m.def(
      "launch_plan_gather",
      [](int tokens, int slots, int M, int K, int experts, mx::Dtype x,
         const std::vector<Part>& parts, bool shared_x, bool mix, int generation,
         const std::string& size) {
        gpu::GatherQuantizedMatmul op{tokens,        slots, M,  parts.at(0).N, K, experts, shared_x,
                                      element_of(x), {},    mix};
        for (const Part& part : parts) {
          op.parts.push_back({part.format, part.element});
        }
        return gpu::launch_plan(op, {generation, size.at(0)});
      },
      nb::kw_only(), "tokens"_a, "slots"_a, "M"_a = 1, "K"_a, "experts"_a, "x"_a, "parts"_a,
      "shared_x"_a = false, "mix"_a = false, "generation"_a = 15, "size"_a = "s",
      "Launches of gather_matmul, of gather_swiglu for two parts; `mix`: with scores.");
  m.def(
      "launch_plan_route",
      [](int tokens, int experts, int slots, mx::Dtype logits, bool normalise, int generation,
         const std::string& size) {
        return gpu::launch_plan(gpu::Route{tokens, experts, slots, normalise, element_of(logits)},
                                {generation, size.at(0)});
      },
      nb::kw_only(), "tokens"_a, "experts"_a, "slots"_a, "logits"_a, "normalise"_a,
      "generation"_a = 15, "size"_a = "s", "Launches of route.");
  m.def(
      "launch_plan_delta_net",
      [](int B, int T, int Hk, int Hv, int Dk, int Dv, int taps, mx::Dtype x,
         const std::vector<mx::Dtype>& weights, const std::array<bool, 4>& present,
         bool interleaved, bool keep_steps, float eps, int generation, const std::string& size) {
        const auto& [conv, recurrent, mask, lengths] = present;
        return gpu::launch_plan(
            gpu::DeltaNet{B, T, Hk, Hv, Dk, Dv, taps, interleaved, element_of(x),
                          element_of(weights.at(0)), element_of(weights.at(1)),
                          element_of(weights.at(2)), element_of(weights.at(3)), conv, recurrent,
                          mask, lengths, keep_steps, eps},
            {generation, size.at(0)});
      },
      nb::kw_only(), "B"_a, "T"_a, "Hk"_a, "Hv"_a, "Dk"_a, "Dv"_a, "taps"_a = 4, "x"_a, "weights"_a,
      "present"_a, "interleaved"_a = false, "keep_steps"_a = false, "eps"_a = 1e-6f,
      "generation"_a = 15, "size"_a = "s",
      "Launches of delta_net; `weights`: dtypes of conv_weight, A_log, dt_bias and norm_weight; "
      "`present`: whether there are conv_state, state, mask and lengths.");
  m.def(
      "launches_of",
      [](const mx::array& y, int generation, const std::string& size) {
        return gpu::launches_of(y, {generation, size.at(0)});
      },
      "y"_a, nb::kw_only(), "generation"_a = 15, "size"_a = "s",
      "What a GPU would launch for an array that an operation is yet to compute, and the arrays it "
      "binds as inputs.");
  m.def(
      "try_kernels",
      [](const mx::array& y, int generation, const std::string& size, mx::StreamOrDevice s) {
        return gpu::try_kernels(y, {generation, size.at(0)}, s);
      },
      "y"_a, nb::kw_only(), "generation"_a = 15, "size"_a = "s", "stream"_a = nb::none(),
      "What is wrong with the stream's kernels for such an array, in a small case that the CPU "
      "computes as well; an empty text if nothing.");
  m.def("difference", &gpu::difference, "got"_a, "expected"_a,
        "What is wrong with arrays that a kernel made, or an empty text.");
}

}  // namespace mixbit
