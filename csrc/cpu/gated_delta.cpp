#include "cpu/gated_delta.h"

#include <algorithm>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "cpu/thread_pool.h"

namespace mixbit::cpu {

namespace {

// A decaying state turns subnormal, where arithmetic is a hundred times slower. The thread's mode
// is restored afterwards: nobody else's results change.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FlushSubnormals() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" : : "r"(saved_ | (uint64_t{1} << 24)));
  }
  ~FlushSubnormals() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

// State values visited that make a task worth handing to another thread (some 10 µs).
constexpr int64_t kWorkPerTask = 64 * 1024;

}  // namespace

void gated_delta(GatedDelta p, const void* q, const void* k, const void* v, Element element) {
  const Kernels& table = kernels();
  const int key_rows = p.B * p.T * p.Hk;
  const int value_rows = p.B * p.T * p.Hv;
  std::vector<float> floats;
  if (element != Element::f32) {
    const size_t keys = static_cast<size_t>(key_rows) * p.Dk;
    floats.resize(2 * keys + static_cast<size_t>(value_rows) * p.Dv);
    table.to_float(q, element, key_rows, p.Dk, floats.data(), p.Dk);
    table.to_float(k, element, key_rows, p.Dk, floats.data() + keys, p.Dk);
    table.to_float(v, element, value_rows, p.Dv, floats.data() + 2 * keys, p.Dv);
    p.q = floats.data();
    p.k = floats.data() + keys;
    p.v = floats.data() + 2 * keys;
  } else {
    p.q = static_cast<const float*>(q);
    p.k = static_cast<const float*>(k);
    p.v = static_cast<const float*>(v);
  }
  // A task is a row block of one head, or several whole heads when heads are little work.
  const int heads = p.B * p.Hv;
  const int64_t work = int64_t(p.T) * p.Dk * p.Dv;
  const bool split = work >= kWorkPerTask;
  const int rows = split ? kStateRows : p.Dv;
  const int heads_per_task = split ? 1
                                   : static_cast<int>(std::min<int64_t>(
                                         heads, kWorkPerTask / std::max<int64_t>(work, 1) + 1));
  const int row_tasks = (p.Dv + rows - 1) / rows;
  const int head_tasks = (heads + heads_per_task - 1) / heads_per_task;
  parallel_for(head_tasks * row_tasks, [&](int task) {
    const FlushSubnormals scope;
    const int first = task / row_tasks * heads_per_task;
    const int begin = task % row_tasks * rows;
    for (int head = first; head < std::min(heads, first + heads_per_task); ++head) {
      table.gated_delta(p, head / p.Hv, head % p.Hv, begin, std::min(p.Dv, begin + rows));
    }
  });
}

}  // namespace mixbit::cpu
