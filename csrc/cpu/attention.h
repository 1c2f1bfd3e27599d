// Schedules attention over threads.
#pragma once

#include "cpu/kernels.h"

namespace mixbit::cpu {

void attention(const Attention& problem);

}  // namespace mixbit::cpu
