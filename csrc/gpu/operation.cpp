#include "gpu/operation.h"

#include "gpu/trial.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"

namespace mixbit::gpu {

namespace {

const Operation& operation_of(const mx::array& output) {
  const Operation* operation =
      output.has_primitive() ? dynamic_cast<const Operation*>(&output.primitive()) : nullptr;
  if (operation == nullptr) {
    throw std::invalid_argument("the array is not one that a kernel of mixbit is yet to compute.");
  }
  return *operation;
}

// "" if both agree.
std::string compare(const mx::array& output, const Device& device, const mx::Stream& s) {
  const auto compute = [&](const mx::Stream& stream) {
    auto outputs =
        operation_of(output).small_case(output.inputs(), output.outputs(), device, stream);
    mx::eval(outputs);
    return outputs;
  };
  return difference(compute(s), compute(mx::default_stream(mx::Device::cpu)));
}

}  // namespace

void require(const std::vector<mx::array>& outputs) {
  const mx::array& output = outputs[0];
  const mx::Stream s = output.primitive().stream();
  if (s.device == mx::Device::gpu) {
    require(operation_of(output).describe(output.inputs(), outputs), s,
            [&](const Device& device) { return compare(output, device, s); });
  }
}

std::pair<LaunchPlan, std::vector<mx::array>> launches_of(const mx::array& output,
                                                          const Device& device) {
  const Description operation = operation_of(output).describe(output.inputs(), output.outputs());
  return {operation.plan(device), output.inputs()};
}

std::string try_kernels(const mx::array& output, const Device& device, mx::StreamOrDevice s) {
  return compare(output, device, mx::to_stream(s));
}

}  // namespace mixbit::gpu
