#include "cpu/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

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

void run(const GatedDelta& p) {
  const Kernels& table = kernels();
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

// Values of the convolution or the norm that make a task.
constexpr int64_t kValuesPerTask = 16 * 1024;

// f(i, t0, t1) for i in [0, outer) over steps [0, T), as many at a time as make a task when each is
// `values` of work.
template <class F>
void over_steps(int outer, int T, int64_t values, const F& f) {
  const int steps = static_cast<int>(
      std::clamp<int64_t>(kValuesPerTask / std::max<int64_t>(values, 1), 1, std::max(T, 1)));
  const int tiles = (T + steps - 1) / steps;
  parallel_for(outer * tiles, [&](int task) {
    const int begin = task % tiles * steps;
    f(task / tiles, begin, std::min(T, begin + steps));
  });
}

float softplus(float x) {
  return x > 20.f ? x : std::log1p(std::exp(x));
}

float at(const Parameter& p, size_t i) {
  return load_element(p.data, p.element, i);
}

// The channels q | k | v of a step of qkv.
void copy_channels(const DeltaNet& net, const char* step, char* out) {
  const size_t size = size_of(net.element);
  auto copy = [&](HeadPlaces heads, size_t count) {
    for (int hk = 0; hk < net.Hk; ++hk, out += count * size) {
      std::memcpy(out, step + place_of(heads, hk, 0, 0) * size, count * size);
    }
  };
  copy(net.layout.q, net.Dk);
  copy(net.layout.k, net.Dk);
  copy(net.layout.v, size_t(net.Hv / net.Hk) * net.Dv);
}

// The taps − 1 inputs of the convolution before each row's next step.
void keep_conv_state(const DeltaNet& net, int C, const int* lengths, void* out) {
  const size_t row = size_t(C) * size_of(net.element);
  const size_t pitch = net.layout.qkv_step * size_of(net.element);
  char* target = static_cast<char*>(out);
  const char* qkv = static_cast<const char*>(net.qkv);
  const char* before = static_cast<const char*>(net.conv_state);
  for (int b = 0; b < net.B; ++b) {
    const int end = lengths == nullptr ? net.T : std::clamp(lengths[b], 0, net.T);
    for (int j = 0; j < net.taps - 1; ++j, target += row) {
      const int step = end - (net.taps - 1) + j;
      if (step < 0 && before != nullptr) {
        std::memcpy(target, before + (size_t(b) * (net.taps - 1) + net.taps - 1 + step) * row, row);
      } else if (step >= 0 && (net.mask == nullptr || net.mask[b * net.T + step])) {
        copy_channels(net, qkv + (size_t(b) * net.T + step) * pitch, target);
      } else {
        std::memset(target, 0, row);
      }
    }
  }
}

}  // namespace

void gated_delta(GatedDelta p, const void* q, const void* k, const void* v, Element element) {
  const size_t keys = size_t(p.B) * p.Hk * p.T * p.Dk;
  const size_t values = size_t(p.B) * p.Hv * p.T * p.Dv;
  const std::unique_ptr<float[]> floats(new float[2 * keys + values]);
  // [B, T, H, D] in `element` to [B, H, T, D].
  auto by_head = [&](const void* from, int heads, int dims, float* to) {
    const char* row = static_cast<const char*>(from);
    for (int bt = 0; bt < p.B * p.T; ++bt) {
      for (int h = 0; h < heads; ++h, row += dims * size_of(element)) {
        const size_t target = (size_t(bt / p.T) * heads + h) * p.T + bt % p.T;
        kernels().to_float(row, element, 1, dims, to + target * dims, dims);
      }
    }
  };
  by_head(q, p.Hk, p.Dk, floats.get());
  by_head(k, p.Hk, p.Dk, floats.get() + keys);
  by_head(v, p.Hv, p.Dv, floats.get() + 2 * keys);
  p.q = floats.get();
  p.k = p.q + keys;
  p.v = p.k + keys;
  run(p);
}

void delta_net(const DeltaNetLayer& layer) {
  const Kernels& table = kernels();
  DeltaNet net = layer.net;
  const int C = 2 * net.Hk * net.Dk + net.Hv * net.Dv;
  const size_t steps = static_cast<size_t>(net.B) * net.T;
  const size_t values = steps * net.Hv * net.Dv, gates = steps * net.Hv;
  const std::unique_ptr<float[]> floats(
      new float[2 * size_t(C) * net.taps + net.Dv + steps * C + values + 2 * gates]);
  float* taps_last = floats.get();
  float* taps_first = taps_last + size_t(C) * net.taps;
  float* norm = taps_first + size_t(C) * net.taps;
  net.q = norm + net.Dv;
  net.k = net.q + steps * net.Hk * net.Dk;
  net.v = net.k + steps * net.Hk * net.Dk;
  float* o = net.v + values;
  float* g = o + values;
  float* beta = g + gates;

  table.to_float(layer.conv_weight.data, layer.conv_weight.element, 1, C * net.taps, taps_last,
                 C * net.taps);
  for (int c = 0; c < C; ++c) {
    for (int j = 0; j < net.taps; ++j) {
      taps_first[j * C + c] = taps_last[c * net.taps + j];
    }
  }
  table.to_float(layer.norm_weight.data, layer.norm_weight.element, 1, net.Dv, norm, net.Dv);
  const int share = net.Hv / net.Hk;
  for (size_t i = 0; i < gates; ++i) {
    const int h = static_cast<int>(i % net.Hv);
    const size_t step = i / net.Hv * net.layout.gate_step;
    const float a = layer.a[step + place_of(net.layout.a, h / share, h % share, 1)];
    const float b = layer.b[step + place_of(net.layout.b, h / share, h % share, 1)];
    const float rate = std::exp(at(layer.A_log, h));
    g[i] = std::exp(-rate * softplus(a + at(layer.dt_bias, h)));
    beta[i] = 1.f / (1.f + std::exp(-b));
  }

  net.taps_first = taps_first;
  net.norm_weight = norm;
  net.o = o;
  keep_conv_state(net, C, layer.lengths, layer.conv_state_out);
  const int heads = 2 * net.Hk + net.Hv;
  if (net.T == 1) {
    // All heads of one step: few values, one task.
    over_steps(1, net.B, C, [&](int, int b0, int b1) {
      for (int b = b0; b < b1; ++b) {
        for (int head = 0; head < heads; ++head) {
          table.delta_net_mix(net, b, head, 0, 1);
        }
      }
    });
  } else {
    over_steps(net.B * heads, net.T, std::max(net.Dk, net.Dv), [&](int outer, int t0, int t1) {
      table.delta_net_mix(net, outer / heads, outer % heads, t0, t1);
    });
  }

  GatedDelta p{};
  p.B = net.B;
  p.T = net.T;
  p.Hk = net.Hk;
  p.Hv = net.Hv;
  p.Dk = net.Dk;
  p.Dv = net.Dv;
  p.q = net.q;
  p.k = net.k;
  p.v = net.v;
  p.g = g;
  p.beta = beta;
  p.mask = net.mask;
  p.state_in = layer.state_in;
  p.state_out = layer.state_out;
  p.keep_steps = layer.keep_steps;
  p.y = o;
  p.y_element = Element::f32;
  p.y_by_head = true;
  run(p);

  over_steps(1, static_cast<int>(steps), int64_t(net.Hv) * net.Dv,
             [&](int, int t0, int t1) { table.delta_net_norm(net, t0, t1); });
}

}  // namespace mixbit::cpu
