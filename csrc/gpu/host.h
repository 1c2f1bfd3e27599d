// Runs launch plans on a Metal GPU. Where mixbit is built without Metal, everything throws
// NoKernel.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu/launch_plan.h"
#include "mlx/stream.h"

namespace mixbit::gpu {

// This GPU does not run the operation: stock MLX has to. Without a text the plan wants it so, else
// the text says what failed.
class MIXBIT_API NoKernel : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An input in whose memory an output may be made, of equal size, if nobody else wants the input.
struct InPlace {
  size_t input, output;
};

// An operation with its shapes and types; `key` is the same for the same one. A plan without
// launches leaves the operation to stock MLX.
struct Description {
  std::string key;
  std::function<LaunchPlan(const Device&)> plan;
  std::optional<InPlace> in_place = {};
};

// Throws NoKernel unless the operation's kernels compile for the GPU of `stream` and compute right.
// If there are some that this process has not tried, `trial` is called, which says what is wrong
// with them, or "".
void require(const Description& operation, const mx::Stream& stream,
             const std::function<std::string(const Device&)>& trial);

// Gives `outputs` their memory and encodes the launches. `inputs` are evaluated and row-contiguous.
void run(const Description& operation, const mx::Stream& stream,
         const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);

}  // namespace mixbit::gpu
