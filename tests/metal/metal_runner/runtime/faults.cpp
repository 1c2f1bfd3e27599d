#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <iterator>

#include "buffers.h"
#include "dispatch.h"
#include "findings.h"

namespace runner {

namespace {

uint64_t program_counter(const void* context) {
  const auto& machine_context = ((const ucontext_t*)context)->uc_mcontext;
#if defined(__APPLE__) && defined(__aarch64__)
  return machine_context->__ss.__pc;
#elif defined(__APPLE__)
  return machine_context->__ss.__rip;
#elif defined(__x86_64__)
  return (uint64_t)machine_context.gregs[REG_RIP];
#else
  return machine_context.pc;
#endif
}

std::string describe(int signal, uintptr_t at) {
  if (signal == SIGFPE)
    return "an integer division by zero";
  if (signal == SIGILL || signal == SIGTRAP)
    return "undefined behaviour (a trap)";
  if (at - ((uintptr_t)machine.stacks - kBelowStacks) < kBelowStacks + kStackBytes * kMaxThreads) {
    return "an overflow of the thread's stack";
  }
  if (in_region(at)) {
    const char* what = buffer_at(at) ? "a store to read-only " : "an access outside of ";
    return what + name_of_nearest(at);
  }
  uintptr_t arena = (uintptr_t)machine.arena - page_bytes();
  if (at - arena < kThreadgroupArena + 2 * page_bytes()) {
    return "an access outside of threadgroup memory";
  }
  return format("an access to address %p", (void*)at);
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (!machine.launching) {  // not ours
    std::signal(signal, SIG_DFL);
    return;
  }
  std::string by = machine.current ? name_of(*machine.current) : "the runner itself";
  std::string text = describe(signal, (uintptr_t)info->si_addr) + " by " + by;
  add_finding("fault", program_counter(context), 0, [&] { return text; });
  fail("%s", text.c_str());
}

}  // namespace

FaultHandlers::FaultHandlers() {
  static char stack[256 << 10];
  stack_t ours = {};
  ours.ss_sp = stack, ours.ss_size = sizeof stack;
  sigaltstack(&ours, &old_stack_);
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (size_t i = 0; i < std::size(kSignals); i++)
    sigaction(kSignals[i], &action, &old_[i]);
}

FaultHandlers::~FaultHandlers() {
  for (size_t i = 0; i < std::size(kSignals); i++)
    sigaction(kSignals[i], &old_[i], nullptr);
  sigaltstack(&old_stack_, nullptr);
}

}  // namespace runner
