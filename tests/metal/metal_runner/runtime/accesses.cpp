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

void access(const void* pointer, size_t bytes, bool store, uint64_t address) {
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
  }  // else it is a constant of the library
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

#define LOAD(NAME, BYTES)               \
  void __tsan_##NAME##BYTES(void* at) { \
    access(at, BYTES, false, CALLER);   \
  }
#define STORE(NAME, BYTES)              \
  void __tsan_##NAME##BYTES(void* at) { \
    access(at, BYTES, true, CALLER);    \
  }
#define BOTH(NAME, BYTES)               \
  void __tsan_##NAME##BYTES(void* at) { \
    access(at, BYTES, false, CALLER);   \
    access(at, BYTES, true, CALLER);    \
  }
#define ACCESS(BYTES)           \
  LOAD(read, BYTES)             \
  LOAD(unaligned_read, BYTES)   \
  STORE(write, BYTES)           \
  STORE(unaligned_write, BYTES) \
  BOTH(read_write, BYTES)       \
  BOTH(unaligned_read_write, BYTES)
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
#undef ACCESS
#undef BOTH
#undef STORE
#undef LOAD

void __tsan_read_range(void* at, unsigned long bytes) {
  access(at, bytes, false, CALLER);
}
void __tsan_write_range(void* at, unsigned long bytes) {
  access(at, bytes, true, CALLER);
}
void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  access(from, bytes, false, CALLER);
  access(to, bytes, true, CALLER);
  return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
  access(from, bytes, false, CALLER);
  access(to, bytes, true, CALLER);
  return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, unsigned long bytes) {
  access(to, bytes, true, CALLER);
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
