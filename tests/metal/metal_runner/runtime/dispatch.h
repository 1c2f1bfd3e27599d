// What Python asks for, and the signal handlers that turn faults into findings.
#pragma once
#include <csignal>

#include "machine.h"

namespace runner {

struct LaunchRequest {  // mirrored in machine.py
  Entry entry;
  void* const* buffers;
  const unsigned* threadgroup_bytes;
  unsigned threadgroup_arguments;
  unsigned grid[3];
  unsigned threads_per_threadgroup[3];
  unsigned long seed;
  int grid_of_threads;  // otherwise of threadgroups
  int instrumented;
  int find_races;
  int count;
  int order;
  int flush_denormals;
};

// Catches the signals of bad accesses and traps while it lives.
class FaultHandlers {
 public:
  FaultHandlers();
  ~FaultHandlers();
  FaultHandlers(const FaultHandlers&) = delete;
  FaultHandlers& operator=(const FaultHandlers&) = delete;

 private:
  static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
  struct sigaction old_[sizeof kSignals / sizeof kSignals[0]];
  stack_t old_stack_;
};

}  // namespace runner
