// Data races: two accesses to a byte, at least one of them a store, with nothing between that
// orders them. A barrier orders only the memory that its flags name.
#pragma once
#include "buffers.h"

namespace runner {

void forget_threadgroup_accesses();  // before a launch
void threadgroup_access(uintptr_t at, size_t bytes, bool store, uint64_t address);
void threadgroup_atomic(uintptr_t at, size_t bytes);
void device_access(Buffer& buffer, uintptr_t at, size_t bytes, bool store, uint64_t address);

// A store over another thread's is judged once it has happened: the same value does no harm.
void settle_store();

}  // namespace runner
