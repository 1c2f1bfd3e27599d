// What a kernel's code and the runtime share.
#pragma once

#ifdef __OPENCL_CPP_VERSION__  // the address space check: parsed, never run
typedef const __constant char* runner_string;
#define RUNNER_THREAD __private
namespace runner {
struct Combine {
  Combine() = default;
  template <class F>
  Combine(F) {}
};
}  // namespace runner
#else
typedef const char* runner_string;
#define RUNNER_THREAD
namespace runner {
struct Post;
using Combine = void (*)(Post* const* lanes);
}  // namespace runner
#endif

namespace runner {

constexpr int kSimdWidth = 32;

// Where one thread stands, under the names of MSL's attributes.
struct ThreadPosition {
  unsigned thread_position_in_grid[3];
  unsigned thread_position_in_threadgroup[3];
  unsigned threadgroup_position_in_grid[3];
  unsigned threads_per_grid[3];
  unsigned threadgroups_per_grid[3];
  unsigned threads_per_threadgroup[3];
  unsigned dispatch_threads_per_threadgroup[3];
  unsigned thread_index_in_threadgroup;
  unsigned thread_index_in_simdgroup;
  unsigned simdgroup_index_in_threadgroup;
  unsigned simdgroups_per_threadgroup;
  unsigned dispatch_simdgroups_per_threadgroup;
  unsigned threads_per_simdgroup;
  unsigned thread_execution_width;
  unsigned quadgroup_index_in_threadgroup;
  unsigned thread_index_in_quadgroup;
  unsigned quadgroups_per_threadgroup;
};

// A lane that reaches a simdgroup function posts its operands and waits. When all lanes of the
// simdgroup wait, `combine` runs once over the posts of the lanes at this place; the entry of a
// lane that is elsewhere is null.
struct Post {
  Combine combine;
  runner_string name;
};

// A place in the source: line, and column in the upper bits, which inlining and unrolling keep.
struct Place {
  unsigned site;
  runner_string file;
};

#ifndef __OPENCL_CPP_VERSION__
using Entry = void (*)(const ThreadPosition*, void* const* buffers, void* const* threadgroup);
struct Kernel {
  const char* name;
  Entry entry;
};
#endif

}  // namespace runner

extern "C" {
void runner_simd(runner::Post*, unsigned site, runner_string file);
void runner_barrier(int of_simdgroup, unsigned flags, unsigned site, runner_string file);
void* runner_threadgroup_variable(unsigned id, unsigned long size, runner_string name);
unsigned runner_lane();
void runner_inactive_read();
void runner_atomic(const volatile void*, unsigned long size);
}

// The caller's place, as default arguments: they are evaluated where the call stands.
#define RUNNER_PLACE                                                              \
  unsigned runner_site = __builtin_LINE() | (unsigned(__builtin_COLUMN()) << 20), \
           runner_string runner_file = __builtin_FILE()
#define RUNNER_HERE runner_site, runner_file
