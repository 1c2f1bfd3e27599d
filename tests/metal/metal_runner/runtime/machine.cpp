#include "machine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

namespace runner {

Machine machine;

size_t page_bytes() {
  static const size_t bytes = size_t(sysconf(_SC_PAGESIZE));
  return bytes;
}

static char* reserve(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : (char*)at;
}

void map_memory() {
  if (machine.stacks)
    return;
  size_t stacks = kStackBytes * kMaxThreads;
  machine.stacks = reserve(kBelowStacks + stacks) + kBelowStacks;
  mprotect(machine.stacks, stacks, PROT_READ | PROT_WRITE);
  machine.arena = reserve(kThreadgroupArena + 2 * page_bytes()) + page_bytes();
  mprotect(machine.arena, kThreadgroupArena, PROT_READ | PROT_WRITE);
}

bool in_stacks(uintptr_t address) {
  return address - (uintptr_t)machine.stacks < kStackBytes * kMaxThreads;
}

bool in_arena(uintptr_t address) {
  return address - (uintptr_t)machine.arena < kThreadgroupArena;
}

uint64_t next_random() {  // xorshift
  uint64_t& x = machine.random_state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return x;
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(machine.error, sizeof machine.error, format, arguments);
  va_end(arguments);
  siglongjmp(machine.escape, 1);
}

}  // namespace runner
