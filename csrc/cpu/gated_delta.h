// Schedules the gated delta rule over threads.
#pragma once

#include "cpu/kernels.h"

namespace mixbit::cpu {

// q, k and v come in `element`, the type of y; everything else of `problem` is filled in.
void gated_delta(GatedDelta problem, const void* q, const void* k, const void* v, Element element);

}  // namespace mixbit::cpu
