// What this build is and what it chose on this machine.
#pragma once

#include <string>
#include <vector>

#include "weights.h"

namespace mixbit {

MIXBIT_API std::string isa();
MIXBIT_API std::vector<std::string> isas();
MIXBIT_API int num_threads();

// The MLX version whose headers this library was compiled against.
MIXBIT_API std::string built_for_mlx();

}  // namespace mixbit
