// fp32 buffers that begin a cache line, so that no vector read from their rows lies across two:
// that costs a product a third of its speed.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace mixbit::cpu {

constexpr size_t kCacheLine = 64;

struct ScratchDelete {
  void operator()(float* p) const { ::operator delete[](p, std::align_val_t(kCacheLine)); }
};
using Scratch = std::unique_ptr<float[], ScratchDelete>;

inline Scratch make_scratch(size_t floats) {
  return Scratch(
      static_cast<float*>(::operator new[](floats * sizeof(float), std::align_val_t(kCacheLine))));
}

// A thread's buffer, kept between tasks and grown when a task needs more.
inline float* thread_scratch(size_t floats) {
  thread_local Scratch buffer;
  thread_local size_t size = 0;
  if (size < floats) {
    buffer = make_scratch(floats);
    size = floats;
  }
  return buffer.get();
}

}  // namespace mixbit::cpu
