// The emulated GPU: one launch at a time, one threadgroup at a time, one fibre a thread.
#pragma once
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "../shim/interface.h"

namespace runner {

constexpr size_t kMaxThreads = 1024;          // in a threadgroup, as on Apple's GPUs
constexpr size_t kThreadgroupMemory = 32768;  // bytes a threadgroup may declare
constexpr size_t kThreadgroupArena = 65536;   // bytes mapped, so that overruns can be told
constexpr unsigned kLineMask = 0xfffff;       // of a site: its line

enum class State : uint8_t { running, in_simd_function, at_simd_barrier, at_barrier, done };
enum class Order : int { forward = 0, backward = 1, shuffled = 2 };
enum MemFlags : unsigned { kDevice = 1, kThreadgroup = 2 };

struct Thread {
  void* stack;
  State state;
  Post* post;
  Place place;
  unsigned barrier_flags;
  ThreadPosition position;

  unsigned index() const { return position.thread_index_in_threadgroup; }
  unsigned simdgroup() const { return position.simdgroup_index_in_threadgroup; }
  unsigned lane() const { return position.thread_index_in_simdgroup; }
  bool waits_with(const Thread& other) const {
    return state == other.state && place.site == other.place.site && place.file == other.place.file;
  }
};

// How often ordering points were passed: barriers that order threadgroup or device memory, and
// simdgroup functions, which order nothing but are often taken for it.
struct Epochs {
  uint32_t threadgroup = 0, device = 0, simd_functions = 0;
};

struct Variable {
  char* at;
  uint32_t threadgroup;
};

struct Machine {
  Thread threads[kMaxThreads];
  Thread* current = nullptr;
  void* main_stack = nullptr;
  char* stacks = nullptr;
  size_t guarded_stacks = 0;

  Entry entry = nullptr;
  void* const* buffers = nullptr;
  void* const* threadgroup_arguments = nullptr;

  char* arena = nullptr;  // threadgroup memory
  size_t arena_used = 0, arena_peak = 0;
  std::unordered_map<unsigned, Variable> variables;

  uint32_t threadgroup = 0;  // serial number within the launch, from 1
  Epochs of_threadgroup;
  Epochs of_simdgroup[kMaxThreads / kSimdWidth];

  bool instrumented = false;  // the kernel calls back on memory accesses
  bool find_races = false;
  bool count = false;
  Order order = Order::forward;
  uint64_t random_state = 1;

  sigjmp_buf escape;
  bool launching = false;
  char error[2048] = {};
};
extern Machine machine;

constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kBelowStacks = 1 << 20;  // where a large frame that overflows lands

size_t page_bytes();
void map_memory();  // stacks and arena, once
bool in_stacks(uintptr_t address);
bool in_arena(uintptr_t address);
uint64_t next_random();

// Gives up on the launch with a message.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace runner
