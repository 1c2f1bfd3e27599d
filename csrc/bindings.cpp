// The Python module mixbit._core: names, docstrings and nothing else.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include "attention.h"
#include "gated_delta.h"
#include "gather_quantized_matmul.h"
#include "info.h"
#include "quantized_matmul.h"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_core, m) {
  // mlx.core must have registered mx.array in the "mlx" domain first.
  nb::module_::import_("mlx.core");

  m.doc() = "Native primitives of mixbit on mx.array; mixbit.ops is their public face.";

  m.def("quantized_matmul", &mixbit::quantized_matmul, "x"_a, "w"_a, "scales"_a,
        "biases"_a = nb::none(), nb::kw_only(), "bias"_a = nb::none(), "group_size"_a = 64,
        "bits"_a = 4, "mode"_a = "affine", "stream"_a = nb::none(),
        "x [..., K] times the transpose of a packed weight [N, K], plus bias [N]: [..., N] in x's "
        "dtype.");
  m.def("linear", &mixbit::linear, "x"_a, "w"_a, nb::kw_only(), "bias"_a = nb::none(),
        "stream"_a = nb::none(),
        "x [..., K] times the transpose of a dense weight [N, K], plus bias [N]: [..., N] in x's "
        "dtype.");
  m.def(
      "gather_quantized_matmul", &mixbit::gather_quantized_matmul, "x"_a, "w"_a, "scales"_a,
      "biases"_a.none(), "indices"_a, nb::kw_only(), "group_size"_a = 64, "bits"_a = 4,
      "mode"_a = "affine", "stream"_a = nb::none(),
      "x [..., M, K] times the transposes of w[indices], w packed [E, N, K]: [indices..., M, N].");
  m.def("gather_linear", &mixbit::gather_linear, "x"_a, "w"_a, "indices"_a, nb::kw_only(),
        "stream"_a = nb::none(),
        "x [..., M, K] times the transposes of w[indices], w dense [E, N, K]: [indices..., M, N].");
  m.def("gated_delta", &mixbit::gated_delta, "q"_a, "k"_a, "v"_a, "g"_a, "beta"_a,
        "state"_a = nb::none(), "mask"_a = nb::none(), nb::kw_only(), "stream"_a = nb::none(),
        "The gated delta rule over T steps: (y [B, T, Hv, Dv], state [B, Hv, Dv, Dk]).");

  m.def("attention", &mixbit::attention, "q"_a, "k"_a, "v"_a, nb::kw_only(), "scale"_a,
        "causal"_a = false, "mask"_a = nb::none(), "stream"_a = nb::none(),
        "softmax(scale q kᵀ + mask) v: q [B, H, T, D], k and v [B, Hk, S, D] -> [B, H, T, D].");

  m.def("isa", &mixbit::isa, "Name of the instruction set whose kernels run.");
  m.def("num_threads", &mixbit::num_threads, "Threads that one operation may use.");
  m.attr("mlx_version") = mixbit::built_for_mlx();
}
