// What the GPU's host asks of a primitive with kernels, and what an operation asks of the host.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gpu/host.h"

namespace mixbit::gpu {

// A primitive that has Metal kernels. The arrays need not be computed yet: they show shapes and
// types.
class Operation {
 public:
  virtual ~Operation() = default;

  virtual Description describe(const std::vector<mx::array>& inputs,
                               const std::vector<mx::array>& outputs) const = 0;

  // A small case, of noise, in which the same kernels run on `device`: its outputs, by `s`.
  virtual std::vector<mx::array> small_case(const std::vector<mx::array>& inputs,
                                            const std::vector<mx::array>& outputs,
                                            const Device& device, const mx::Stream& s) const = 0;
};

// Throws NoKernel if the outputs of an Operation are to come from a GPU whose kernels for them do
// not compile or compute wrong. To be called before they are given away.
void require(const std::vector<mx::array>& outputs);

// What a GPU would launch for an array that an Operation is yet to compute, and the arrays it binds
// as inputs.
MIXBIT_API std::pair<LaunchPlan, std::vector<mx::array>> launches_of(const mx::array& output,
                                                                     const Device& device);

// What is wrong with the kernels of `s` for such an array, in a small case that `s` and the CPU
// compute; "" if nothing.
MIXBIT_API std::string try_kernels(const mx::array& output, const Device& device,
                                   mx::StreamOrDevice s);

}  // namespace mixbit::gpu
