#pragma once

#include <nanobind/nanobind.h>

namespace mixbit {

void bind_launch_plans(nanobind::module_& m);

}  // namespace mixbit
