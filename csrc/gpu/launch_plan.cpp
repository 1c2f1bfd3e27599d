#include "gpu/launch_plan.h"

#include <cctype>

#include "params.h"

namespace mixbit::gpu {

const char* msl_type(cpu::Element element) {
  switch (element) {
    case cpu::Element::f32:
      return "float";
    case cpu::Element::f16:
      return "half";
    default:
      return "bfloat";
  }
}

uint32_t element_code(const std::optional<cpu::Element>& element) {
  if (!element) {
    return kAbsent;
  }
  return *element == cpu::Element::f32 ? kFloat : *element == cpu::Element::f16 ? kHalf : kBfloat;
}

std::string msl_format(const WeightFormat& format, cpu::Element element) {
  using cpu::WeightKind;
  switch (format.kind) {
    case WeightKind::dense:
      return std::string("Dense<") + msl_type(element) + ">";
    case WeightKind::affine:
      return "Affine<" + std::to_string(format.bits) + ", " + std::to_string(format.group_size) +
             ", " + msl_type(element) + ">";
    case WeightKind::mxfp4:
      return "Mxfp4";
    case WeightKind::mxfp8:
      return "Mxfp8";
    default:
      return "Nvfp4";
  }
}

Launch make_launch(const std::string& family, const std::string& base,
                   const std::vector<std::string>& arguments) {
  std::string list;
  for (const std::string& argument : arguments) {
    list += (list.empty() ? "" : ", ") + argument;
  }
  Launch launch;
  launch.family = family;
  launch.kernel = base;
  bool gap = true;  // whatever no identifier may hold separates the arguments
  for (unsigned char c : list) {
    const bool usable = std::isalnum(c) != 0;
    if (usable && gap) {
      launch.kernel += '_';
    }
    if (usable) {
      launch.kernel += static_cast<char>(c);
    }
    gap = !usable;
  }
  if (!arguments.empty()) {
    const std::string type = base + "<" + list + ">";
    launch.instantiation = "template [[host_name(\"" + launch.kernel +
                           "\")]] [[kernel]] decltype(" + type + ") " + type + ";";
  }
  return launch;
}

}  // namespace mixbit::gpu
