// What this processor can run. Kept out of kernels.h, whose readers may share no inline function.
#pragma once

#include <vector>

#include "cpu/kernels.h"

namespace mixbit::cpu {

// Best first.
std::vector<const Kernels*> usable_kernels();

}  // namespace mixbit::cpu
