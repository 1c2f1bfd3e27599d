// What instrumented kernels call. Their instrumentation is ThreadSanitizer's and
// UndefinedBehaviorSanitizer's, with these functions in the place of those tools' libraries.
#include <cstring>

#include "findings.h"
#include "races.h"
#include "traffic.h"

namespace runner {

namespace {

void device_or_constant(uintptr_t at, size_t bytes, bool store, uint64_t address) {
  Buffer* buffer = buffer_at(at);
  if (!buffer || at + bytes > buffer->end) {
    const char* kind = store ? "device store out of bounds" : "device load out of bounds";
    add_finding(kind, address, 0, [&] {
      return format("%zu-byte %s outside of ", bytes, store ? "store" : "load") +
             name_of_nearest(at) + ", by " + name_of(*machine.current);
    });
    if (!buffer)
      return;
    bytes = buffer->end - at;
  }
  if (store && buffer->read_only) {
    add_finding("store to a read-only buffer", address, 0,
                [&] { return name_of_nearest(at) + ", by " + name_of(*machine.current); });
  }
  device_access(*buffer, at, bytes, store, address);
  if (!machine.count)
    return;
  (store ? buffer->stored : buffer->loaded) += bytes;
  memset(&buffer->touched[at - buffer->first], 1, bytes);
  add_traffic(buffer->constant ? kInConstant : kInDevice, at, bytes, store, address);
}

void thread_memory(uintptr_t at, size_t bytes, bool store, uint64_t address) {
  size_t owner = (at - (uintptr_t)machine.stacks) / kStackBytes;
  if (owner != machine.current->index()) {
    add_finding("access to another thread's memory", address, 0,
                [] { return name_of(*machine.current); });
  }
  if (machine.count)
    add_traffic(kInThread, at, bytes, store, address);
}

void access(void* pointer, size_t bytes, bool store, uint64_t address, bool aligned) {
  if (!machine.current || !bytes)
    return;
  settle_store();
  auto at = (uintptr_t)pointer;
  if (in_region(at)) {
    device_or_constant(at, bytes, store, address);
  } else if (in_arena(at)) {
    threadgroup_access(at, bytes, store, address);
    if (machine.count)
      add_traffic(kInThreadgroup, at, bytes, store, address);
  } else if (in_stacks(at)) {
    thread_memory(at, bytes, store, address);
  } else {
    return;  // constants of the library
  }
  if (aligned && (at & (bytes - 1))) {
    add_finding("misaligned access", address, 0, [&] {
      return format("%zu-byte %s at an address that is %zu modulo %zu, by ", bytes,
                    store ? "store" : "load", size_t(at & (bytes - 1)), bytes) +
             name_of(*machine.current);
    });
  }
}

void undefined(const char* what, const Place& place) {
  if (machine.current) {
    add_finding("undefined behaviour", place,
                [&] { return what + (" by " + name_of(*machine.current)); });
  }
}

}  // namespace

}  // namespace runner

using namespace runner;

#define CALLER ((uint64_t)__builtin_return_address(0) - 1)

extern "C" {

void __tsan_init() {}

#define ACCESS(BYTES)                                 \
  void __tsan_read##BYTES(void* at) {                 \
    access(at, BYTES, false, CALLER, true);           \
  }                                                   \
  void __tsan_write##BYTES(void* at) {                \
    access(at, BYTES, true, CALLER, true);            \
  }                                                   \
  void __tsan_unaligned_read##BYTES(void* at) {       \
    access(at, BYTES, false, CALLER, false);          \
  }                                                   \
  void __tsan_unaligned_write##BYTES(void* at) {      \
    access(at, BYTES, true, CALLER, false);           \
  }                                                   \
  void __tsan_read_write##BYTES(void* at) {           \
    access(at, BYTES, false, CALLER, true);           \
    access(at, BYTES, true, CALLER, true);            \
  }                                                   \
  void __tsan_unaligned_read_write##BYTES(void* at) { \
    access(at, BYTES, false, CALLER, false);          \
    access(at, BYTES, true, CALLER, false);           \
  }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
#undef ACCESS

void __tsan_read_range(void* at, unsigned long bytes) {
  access(at, bytes, false, CALLER, false);
}
void __tsan_write_range(void* at, unsigned long bytes) {
  access(at, bytes, true, CALLER, false);
}
void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  access((void*)from, bytes, false, CALLER, false);
  access(to, bytes, true, CALLER, false);
  return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
  access((void*)from, bytes, false, CALLER, false);
  access(to, bytes, true, CALLER, false);
  return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, unsigned long bytes) {
  access(to, bytes, true, CALLER, false);
  return memset(to, value, bytes);
}

// Each gets a record that begins with the place in the source.
struct UndefinedAt {
  const char* file;
  uint32_t line, column;
};
#define UNDEFINED(NAME, TEXT)                   \
  void __ubsan_handle_##NAME(UndefinedAt* at) { \
    undefined(TEXT, Place{at->line, at->file}); \
  }
UNDEFINED(out_of_bounds, "an index outside of an array")
UNDEFINED(shift_out_of_bounds, "a shift by more than the bits there are")
UNDEFINED(divrem_overflow, "a division by zero")
UNDEFINED(float_cast_overflow, "a float outside of the integer's range")
UNDEFINED(load_invalid_value, "a bool that is neither true nor false")
UNDEFINED(type_mismatch_v1, "a misaligned or null pointer")
#undef UNDEFINED

void runner_atomic(const volatile void* at, unsigned long bytes) {
  traffic.atomics++;
  if (machine.instrumented && machine.current && in_arena((uintptr_t)at)) {
    threadgroup_atomic((uintptr_t)at, bytes);
  }
}

}  // extern "C"
