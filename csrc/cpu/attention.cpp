#include "cpu/attention.h"

#include <algorithm>

#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace mixbit::cpu {

void attention(const Attention& p) {
  if (p.B == 0 || p.H == 0 || p.T == 0 || p.D == 0) {
    return;
  }
  const Kernels& table = kernels();
  const int group = p.H / p.Hk;
  const int steps = std::clamp(kQueryRows / group, 1, p.T);
  const int tiles = (p.T + steps - 1) / steps;
  const size_t floats = attention_scratch(group * steps, p.D);
  parallel_for(p.B * p.Hk * tiles, [&](int task) {
    // Later tiles see more keys: they go first, so that no thread ends with the longest one.
    const int tile = tiles - 1 - task / (p.B * p.Hk);
    const int head = task % (p.B * p.Hk);
    const int begin = tile * steps;
    table.attention(p, head / p.Hk, head % p.Hk, begin, std::min(steps, p.T - begin),
                    thread_scratch(floats));
  });
}

}  // namespace mixbit::cpu
