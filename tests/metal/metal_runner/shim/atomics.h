// metal_atomic. One lane runs at a time, so plain operations are atomic here.
#pragma once
#include "interface.h"
#include "traits.h"

namespace metal {

enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst
};
enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device
};

template <class T>
struct atomic {
  T value;
};
// OpenCL has these names too, and the reading for address spaces would not know which is meant.
#define atomic_int runner_atomic_int
#define atomic_uint runner_atomic_uint
#define atomic_ulong runner_atomic_ulong
#define atomic_bool runner_atomic_bool
#define atomic_float runner_atomic_float
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<ulong> atomic_ulong;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;

// The instrumentation would take the plain operations for races.
#define RUNNER_ATOMIC __attribute__((noinline, no_sanitize("thread")))

template <class T>
RUNNER_ATOMIC T atomic_load_explicit(const volatile atomic<T>* object, memory_order) {
  runner_atomic(object, sizeof(T));
  return object->value;
}
template <class T>
RUNNER_ATOMIC void atomic_store_explicit(volatile atomic<T>* object, remove_cv_t<T> value,
                                         memory_order) {
  runner_atomic(object, sizeof(T));
  object->value = value;
}
#define RUNNER_FETCH(NAME, NEW)                                                              \
  template <class T>                                                                         \
  RUNNER_ATOMIC T atomic_##NAME##_explicit(volatile atomic<T>* object, remove_cv_t<T> value, \
                                           memory_order) {                                   \
    runner_atomic(object, sizeof(T));                                                        \
    T old = object->value;                                                                   \
    object->value = T(NEW);                                                                  \
    return old;                                                                              \
  }
RUNNER_FETCH(exchange, value)
RUNNER_FETCH(fetch_add, old + value)
RUNNER_FETCH(fetch_sub, old - value)
RUNNER_FETCH(fetch_and, old& value)
RUNNER_FETCH(fetch_or, old | value)
RUNNER_FETCH(fetch_xor, old ^ value)
RUNNER_FETCH(fetch_min, value < old ? value : old)
RUNNER_FETCH(fetch_max, old < value ? value : old)
#undef RUNNER_FETCH

template <class T>
RUNNER_ATOMIC bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object,
                                                         remove_cv_t<T>* expected,
                                                         remove_cv_t<T> value, memory_order,
                                                         memory_order) {
  runner_atomic(object, sizeof(T));
  T old = object->value;
  if (__builtin_memcmp((const void*)&old, (const void*)expected, sizeof(T)) == 0) {
    object->value = value;
    return true;
  }
  *expected = old;
  return false;
}
#undef RUNNER_ATOMIC

}  // namespace metal
