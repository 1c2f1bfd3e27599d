// The Python module mixbit._core: names, docstrings and nothing else.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "attention.h"
#include "bindings_gpu.h"
#include "delta_net.h"
#include "gated_delta.h"
#include "gather_quantized_matmul.h"
#include "info.h"
#include "kl_divergence.h"
#include "norm_rope.h"
#include "quantize_search.h"
#include "quantized_matmul.h"
#include "route.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

NB_MODULE(_core, m) {
  // mlx.core must have registered mx.array in the "mlx" domain first.
  nb::module_::import_("mlx.core");

  m.doc() = "Native primitives of mixbit on mx.array; mixbit.ops is their public face.";

  nb::class_<mixbit::Weight>(
      m, "Weight",
      "A weight matrix [N, K] or a stack of them, packed or (without scales) "
      "dense, with its bias [N], the dtype of its product, and the bits that a "
      "16-bit x is rounded to on a CPU.")
      .def(nb::init<const mx::array&, const std::optional<mx::array>&,
                    const std::optional<mx::array>&, const std::optional<mx::array>&, int, int,
                    const std::string&, const std::optional<mx::Dtype>&, int>(),
           "w"_a, "scales"_a = nb::none(), "biases"_a = nb::none(), nb::kw_only(),
           "bias"_a = nb::none(), "group_size"_a = 64, "bits"_a = 4, "mode"_a = "affine",
           "dtype"_a = nb::none(), "activation_bits"_a = 16);

  nb::class_<mixbit::Norm>(m, "Norm", "An RMSNorm of x [..., K] that is part of a product.")
      .def(nb::init<const mx::array&, float>(), "weight"_a, "eps"_a);

  m.def("matmul", &mixbit::matmul, "x"_a, "weights"_a, nb::kw_only(), "norm"_a = nb::none(),
        "residual"_a = nb::none(), "stream"_a = nb::none(),
        "x [..., K] times the transpose of each weight, plus its bias: a list of [..., N].");
  m.def("swiglu", &mixbit::swiglu, "x"_a, "gate"_a, "up"_a, nb::kw_only(), "norm"_a = nb::none(),
        "stream"_a = nb::none(), "SiLU(x gateᵀ) (x upᵀ): [..., N] in x's dtype.");
  m.def("gather_matmul", &mixbit::gather_matmul, "x"_a, "weight"_a, "indices"_a, nb::kw_only(),
        "scores"_a = nb::none(), "stream"_a = nb::none(),
        "x [..., M, K] times the transposes of weight[indices], weight [E, N, K]: "
        "[indices..., M, N], or with scores summed over the last of the indices' dimensions.");
  m.def("gather_swiglu", &mixbit::gather_swiglu, "x"_a, "gate"_a, "up"_a, "indices"_a,
        nb::kw_only(), "stream"_a = nb::none(),
        "SiLU(x gate[indices]ᵀ) (x up[indices]ᵀ), stacks [E, N, K]: [indices..., M, N].");
  m.def("route", &mixbit::route, "logits"_a, "slots"_a, nb::kw_only(), "normalise"_a,
        "stream"_a = nb::none(),
        "The largest of a router's logits [..., E] and their softmax: (uint32, float32) "
        "[..., slots].");
  m.def("gated_delta", &mixbit::gated_delta, "q"_a, "k"_a, "v"_a, "g"_a, "beta"_a,
        "state"_a = nb::none(), "mask"_a = nb::none(), nb::kw_only(), "stream"_a = nb::none(),
        "The gated delta rule over T steps: (y [B, T, Hv, Dv], state [B, Hv, Dv, Dk]).");

  m.def(
      "delta_net",
      [](const mx::array& qkv, const std::optional<mx::array>& z, const mx::array& a,
         const std::optional<mx::array>& b, const mx::array& conv_weight, const mx::array& A_log,
         const mx::array& dt_bias, const mx::array& norm_weight,
         const std::optional<mx::array>& conv_state, const std::optional<mx::array>& state,
         const std::optional<mx::array>& mask, const std::optional<mx::array>& lengths,
         int num_k_heads, float eps, bool keep_steps, mx::StreamOrDevice s) {
        return mixbit::delta_net(qkv, z, a, b, conv_weight, A_log, dt_bias, norm_weight,
                                 {conv_state, state, mask, lengths}, num_k_heads, eps, keep_steps,
                                 s);
      },
      "qkv"_a, "z"_a.none(), "a"_a, "b"_a.none(), "conv_weight"_a, "A_log"_a, "dt_bias"_a,
      "norm_weight"_a, "conv_state"_a = nb::none(), "state"_a = nb::none(), "mask"_a = nb::none(),
      "lengths"_a = nb::none(), nb::kw_only(), "num_k_heads"_a, "eps"_a, "keep_steps"_a = false,
      "stream"_a = nb::none(),
      "GatedDeltaNet between its projections: (y [B, T, Hv Dv], convolution's state, state), with "
      "keep_steps the states after all steps.");
  m.def("attention", &mixbit::attention, "q"_a, "k"_a, "v"_a, nb::kw_only(), "scale"_a,
        "causal"_a = false, "mask"_a = nb::none(), "gate"_a = nb::none(), "stream"_a = nb::none(),
        "softmax(scale q kᵀ + mask) v, times sigmoid(gate): q [B, H, T, D], k and v [B, Hk, S, D], "
        "gate [B, T, H, D] -> [B, T, H, D].");
  m.def("norm_rope", &mixbit::norm_rope, "x"_a, "norm"_a, nb::kw_only(), "dims"_a, "base"_a,
        "scale"_a, "offset"_a, "stream"_a = nb::none(),
        "RMSNorm of heads and the rotation of their first dims values: x [B, T, H, D] -> "
        "[B, H, T, D].");

  m.def("kl_divergence", &mixbit::kl_divergence, "p_hidden"_a, "p_head"_a, "q_hidden"_a,
        "q_head"_a.none(), "targets"_a, nb::kw_only(), "vocabulary"_a, "stream"_a = nb::none(),
        "Softmax statistics of two models' logits, tile by tile: float64 [T, tiles, fields], "
        "float32 on a GPU.");

  m.def("quantize_search", &mixbit::quantize_search, "w"_a, "importance"_a = nb::none(),
        nb::kw_only(), "group_size"_a, "bits"_a, "dtype"_a, "stream"_a = nb::none(),
        "Affine codes, scales and biases of w [..., N, K] with the least squared error, weighted "
        "by the importance [..., K] of the input channels.");

  mixbit::bind_launch_plans(m);

  m.def("isa", &mixbit::isa, "Name of the instruction set whose kernels run.");
  m.def("isas", &mixbit::isas,
        "Instruction sets whose kernels this processor can run, best first.");
  m.def("num_threads", &mixbit::num_threads, "Threads that one operation may use.");
  m.attr("mlx_version") = mixbit::built_for_mlx();
}
