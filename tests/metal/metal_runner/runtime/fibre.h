// One stack for each thread of a threadgroup, and the switch between them.
#pragma once
#include <cstddef>

namespace runner {

// Saves this stack's position to *save and goes on where `load` was saved.
void switch_stack(void** save, void* load);

// What switch_stack takes to begin `function` on the stack that ends at `top`.
void* new_stack(char* top, void (*function)());

}  // namespace runner
