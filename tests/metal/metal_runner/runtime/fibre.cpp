#include "fibre.h"

#include <cstdint>
#include <cstring>

namespace runner {

#if defined(__x86_64__)

// A jump instead of a return: the processor's return predictor would always be wrong here.
__attribute__((naked)) void switch_stack(void**, void*) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n"
      "movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
      "popq %rcx\n"
      "jmp *%rcx\n");
}

void* new_stack(char* top, void (*function)()) {
  auto** at = (void**)((uintptr_t)top & ~uintptr_t(15));
  *--at = nullptr;  // a function finds its stack as a call leaves it
  *--at = (void*)function;
  for (int i = 0; i < 6; i++)
    *--at = nullptr;
  return at;
}

#elif defined(__aarch64__)

__attribute__((naked)) void switch_stack(void**, void*) {
  asm volatile(
      "sub sp, sp, #160\n"
      "stp x19, x20, [sp, #0]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n"
      "stp x25, x26, [sp, #48]\n stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
      "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n"
      "stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
      "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
      "ldp x19, x20, [sp, #0]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n"
      "ldp x25, x26, [sp, #48]\n ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
      "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n"
      "ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
      "add sp, sp, #160\n"
      "br x30\n");
}

void* new_stack(char* top, void (*function)()) {
  constexpr int kSaved = 160, kLinkRegister = 11;
  auto* at = (char*)(((uintptr_t)top & ~uintptr_t(15)) - kSaved);
  memset(at, 0, kSaved);
  ((void**)at)[kLinkRegister] = (void*)function;
  return at;
}

#else
#error "switch_stack is not written for this processor"
#endif

}  // namespace runner
