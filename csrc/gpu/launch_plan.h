// What an operation launches on a Metal GPU: kernels, grids, buffers and parameters. eval_gpu and
// the tests that execute the kernels on a CPU ask the same functions, so what is tested is what
// runs. No Metal is needed to build or to ask them.
//
// How a kernel is made. metal/<family>.metal holds templates; it includes nothing but
// <metal_stdlib> and headers of metal/, each with #pragma once. A library is that file, its headers
// put in place, followed by a line
//
//   template [[host_name("matvec_...")]] [[kernel]] decltype(matvec<...>) matvec<...>;
//
// for each kernel wanted: Launch::instantiation. The name encodes all template arguments, so equal
// names within a family mean equal kernels. Math mode must be "safe": the kernels rely on
// (a + b) − b being computed as written.
//
// How it is launched. `threadgroups` x `threads` per threadgroup; each Binding puts an array at a
// buffer index; `params` are set as bytes at index kParamsBuffer. Indices that no Binding names
// stay empty; the kernel does not touch them. Arrays are row-contiguous and start at 16-byte
// boundaries. Launches run in order, each seeing what those before it wrote.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "weights.h"

namespace mixbit::gpu {

// A GPU as MLX names its architecture: "applegpu_g16s" is generation 16, class 's'.
struct Device {
  int generation;
  char size;  // 'p' phone, 'g' base and Pro, 's' Max, 'd' Ultra
};

struct Binding {
  enum class Role { input, output, temporary };

  Role role;
  uint32_t index;  // among the primitive's inputs or outputs, or the plan's temporaries
  uint32_t buffer;
};

inline constexpr uint32_t kParamsBuffer = 0;

struct Launch {
  std::string family;         // file in metal/, without suffix
  std::string kernel;         // its name in the library
  std::string instantiation;  // MSL line that makes it, empty for a kernel that is no template
  std::array<uint32_t, 3> threadgroups, threads;
  std::vector<Binding> buffers;
  std::vector<uint8_t> params;  // the family's struct of metal/params.h
};

struct LaunchPlan {
  std::vector<Launch> launches;
  std::vector<size_t> temporaries;  // bytes of each
};

// ---- one description and one plan function an operation ----------------------------------------

// quantized_matmul.h's product of x [M, K]. Inputs: x, then for each part its arrays and its bias
// if it has one, then the norm's weight and the residual where those are. Outputs: one a part, or
// one in all with swiglu.
struct QuantizedMatmul {
  struct Part {
    WeightFormat format;
    cpu::Element element;  // of a dense weight, or of affine scales and biases
    int N;
    std::optional<cpu::Element> bias;
    cpu::Element y;
  };

  int M, K;
  cpu::Element x;
  std::vector<Part> parts;
  bool swiglu = false;
  std::optional<cpu::Element> norm;  // RMSNorm of x with this kind of weight [K]
  float eps = 0;
  std::optional<cpu::Element> residual;  // [M, N], added to the only product before rounding
};
MIXBIT_API LaunchPlan launch_plan(const QuantizedMatmul& op, const Device& device);

// Up to so many rows (of tokens, for experts) a row's result does not depend on how many there are;
// above, the matrix units may make it, whose order of summation is their own.
inline constexpr int kInvariantRows = 32;

// gather_quantized_matmul.h's product, of stacks [experts, N, K], of tokens · slots blocks of M
// rows. Inputs: x, whose blocks are one a token (`shared_x`) or one a slot, indices, scores with
// `mix`, then each part's arrays. Output: in x's type.
struct GatherQuantizedMatmul {
  struct Part {
    WeightFormat format;
    cpu::Element element;  // of a dense weight, or of affine scales and biases
  };

  int tokens, slots, M, N, K, experts;
  bool shared_x;
  cpu::Element x;
  std::vector<Part> parts;  // two: gate and up
  bool mix = false;
};
MIXBIT_API LaunchPlan launch_plan(const GatherQuantizedMatmul& op, const Device& device);

// route.h. Input: logits [tokens, experts]. Outputs: indices, scores.
struct Route {
  int tokens, experts, slots;
  bool normalise;
  cpu::Element logits;
};
MIXBIT_API LaunchPlan launch_plan(const Route& op, const Device& device);

// kl_divergence.h. Inputs: hidden states of p [M, K] and of q, targets, then each head's arrays and
// its bias if it has one; one head where both models share it. Output: float [M, spans, fields],
// the fields of cpu::LogitTile for each kVocabularySpan (metal/params.h) tokens.
struct KlDivergence {
  struct Head {
    WeightFormat format;
    cpu::Element element;  // of a dense weight, or of affine scales and biases
    std::optional<cpu::Element> bias;
    int K;
  };

  int M, vocabulary;
  cpu::Element p, q;  // hidden states
  std::vector<Head> heads;
};
MIXBIT_API LaunchPlan launch_plan(const KlDivergence& op, const Device& device);

// delta_net.h. Inputs and outputs: those of the primitive. No launches for heads of more than 256.
struct DeltaNet {
  int B, T, Hk, Hv, Dk, Dv, taps;
  bool interleaved;
  cpu::Element x;  // of qkv, z, y and the convolution's state
  cpu::Element conv_weight, A_log, dt_bias, norm_weight;
  bool conv, recurrent, mask, lengths;  // which optional inputs there are
  bool keep_steps;
  float eps;
};
MIXBIT_API LaunchPlan launch_plan(const DeltaNet& op, const Device& device);

// ---- for the plan functions ---------------------------------------------------------------------

// "float", "half", "bfloat": the element's type in MSL.
const char* msl_type(cpu::Element element);

// MixbitElement of params.h.
uint32_t element_code(const std::optional<cpu::Element>& element);

// The format as a type of metal/dequantize.h; `element` is a dense weight's, or the affine scales'.
std::string msl_format(const WeightFormat& format, cpu::Element element);

// A Launch of kernel `base`<arguments...>; the name is `base` and the arguments, joined. Without
// arguments the kernel is no template.
Launch make_launch(const std::string& family, const std::string& base,
                   const std::vector<std::string>& arguments);

template <class Params>
void set_params(Launch& launch, const Params& params) {
  launch.params.resize(sizeof(Params));
  std::memcpy(launch.params.data(), &params, sizeof(Params));
}

inline uint32_t ceil_div(int a, int b) {
  return static_cast<uint32_t>((a + b - 1) / b);
}

}  // namespace mixbit::gpu
