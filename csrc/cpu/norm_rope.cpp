#include "cpu/norm_rope.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/thread_pool.h"

namespace mixbit::cpu {

namespace {

// Values that make a task worth handing to another thread.
constexpr int64_t kValuesPerTask = 16 * 1024;

// cos and sin of every pair's angle at `position`, in double: at position 10^5 an angle in fp32 is
// wrong by 4e-3.
void angles(const NormRope& p, int position, float* cosines, float* sines) {
  const int half = p.dims / 2;
  for (int i = 0; i < half; ++i) {
    const double frequency = std::pow(double(p.base), -double(i) / half);
    const double angle = double(position) * p.scale * frequency;
    cosines[i] = static_cast<float>(std::cos(angle));
    sines[i] = static_cast<float>(std::sin(angle));
  }
}

void turn(float* head, int half, const float* cosines, const float* sines) {
  for (int i = 0; i < half; ++i) {
    const float first = head[i], second = head[i + half];
    head[i] = first * cosines[i] - second * sines[i];
    head[i + half] = second * cosines[i] + first * sines[i];
  }
}

// head <- x · weight / √(mean x² + eps)
void norm(const NormRope& p, int64_t at, const float* weight, float* head) {
  float squares = 0.f;
  for (int d = 0; d < p.D; ++d) {
    head[d] = load_element(p.x, p.element, at + d * p.strides[3]);
    squares += head[d] * head[d];
  }
  const float factor = 1.f / std::sqrt(squares / static_cast<float>(p.D) + p.eps);
  for (int d = 0; d < p.D; ++d) {
    head[d] *= factor * weight[d];
  }
}

// All heads of one step.
void rotate_step(const NormRope& p, int b, int t, const float* weight, float* head) {
  float* cosines = head + p.D;
  float* sines = cosines + p.dims / 2;
  angles(p, (p.offsets == nullptr ? p.offset : p.offsets[b]) + t, cosines, sines);
  for (int h = 0; h < p.H; ++h) {
    norm(p, b * p.strides[0] + t * p.strides[1] + h * p.strides[2], weight, head);
    turn(head, p.dims / 2, cosines, sines);
    const size_t y = ((size_t(b) * p.H + h) * p.T + t) * p.D;
    for (int d = 0; d < p.D; ++d) {
      store_element(p.y, p.element, y + d, head[d]);
    }
  }
}

}  // namespace

void norm_rope(const NormRope& p) {
  std::vector<float> weight(p.D);
  for (int d = 0; d < p.D; ++d) {
    weight[d] = load_element(p.weight, p.weight_element, d);
  }
  const int64_t values = std::max<int64_t>(int64_t(p.H) * p.D, 1);
  const int steps = p.B * p.T;
  const int per_task = static_cast<int>(kValuesPerTask / values + 1);
  parallel_for((steps + per_task - 1) / per_task, [&](int task) {
    std::vector<float> scratch(p.D + p.dims);
    for (int i = task * per_task; i < std::min(steps, (task + 1) * per_task); ++i) {
      rotate_step(p, i / p.T, i % p.T, weight.data(), scratch.data());
    }
  });
}

}  // namespace mixbit::cpu
