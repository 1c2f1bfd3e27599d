#include "gpu/launch_plan.h"

#include <cctype>

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
  const std::string type = base + "<" + list + ">";
  launch.instantiation = "template [[host_name(\"" + launch.kernel + "\")]] [[kernel]] decltype(" +
                         type + ") " + type + ";";
  return launch;
}

}  // namespace mixbit::gpu
