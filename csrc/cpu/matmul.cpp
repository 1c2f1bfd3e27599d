#include "cpu/matmul.h"

#include <algorithm>
#include <memory>
#include <new>

#include "cpu/thread_pool.h"

namespace mixbit::cpu {

namespace {

struct AlignedDelete {
  void operator()(float* p) const { ::operator delete[](p, std::align_val_t(64)); }
};
using Scratch = std::unique_ptr<float[], AlignedDelete>;

Scratch scratch(size_t floats) {
  return Scratch(
      static_cast<float*>(::operator new[](floats * sizeof(float), std::align_val_t(64))));
}

// Waking another thread costs some 10 µs, in which one core multiplies this many weights.
constexpr int64_t kWorkPerTask = 128 * 1024;

// Columns a task of the direct kernel takes: a multiple of its widest tile, large enough to be
// worth a wake-up, small enough that every thread gets several.
int direct_columns(const MatmulRequest& r) {
  const int64_t work_per_column = int64_t(r.K) * r.M;
  const int worth = static_cast<int>(std::min<int64_t>(r.N, kWorkPerTask / work_per_column + 1));
  const int shared = r.N / (4 * num_threads());
  return round_up(std::max(worth, shared), 4);
}

void run_direct(const Matmul& p, int columns) {
  const Kernels& k = kernels();
  parallel_for((p.N + columns - 1) / columns, [&](int task) {
    const int n0 = task * columns;
    k.matmul_direct(p, 0, p.M, n0, std::min(p.N, n0 + columns));
  });
}

void run_panel(const Matmul& p) {
  const Kernels& k = kernels();
  const int row_tiles = (p.M + kPanelRows - 1) / kPanelRows;
  const int column_tiles = (p.N + kPanelColumns - 1) / kPanelColumns;
  // Neighbouring tasks share their rows of x, which then stay in L2.
  const int64_t work = int64_t(std::min(p.M, kPanelRows)) * kPanelColumns * p.K;
  const int tiles_per_task = static_cast<int>(
      std::clamp<int64_t>(16 * kWorkPerTask / std::max<int64_t>(work, 1), 1, column_tiles));
  const int tasks_per_row = (column_tiles + tiles_per_task - 1) / tiles_per_task;
  parallel_for(row_tiles * tasks_per_row, [&](int task) {
    thread_local const Scratch buffer = scratch(kPanelScratch);
    const int m0 = task / tasks_per_row * kPanelRows;
    const int m1 = std::min(p.M, m0 + kPanelRows);
    const int begin = task % tasks_per_row * tiles_per_task;
    const int end = std::min(column_tiles, begin + tiles_per_task);
    for (int tile = begin; tile < end; ++tile) {
      const int n0 = tile * kPanelColumns;
      k.matmul_panel(p, m0, m1, n0, std::min(p.N, n0 + kPanelColumns), buffer.get());
    }
  });
}

}  // namespace

void matmul(const MatmulRequest& r) {
  if (r.M == 0 || r.N == 0) {
    return;
  }
  Matmul p{r.M, r.N, r.K, nullptr, 0, r.w, r.bias, r.bias_element, r.y, r.y_element, r.y_rows};
  Scratch x;
  if (r.x_element == Element::f32 && r.x_rows == nullptr && r.K % kBlock == 0) {
    p.x = static_cast<const float*>(r.x);
    p.x_stride = r.K;
  } else {
    const int stride = round_up(r.K, kBlock);
    x = scratch(static_cast<size_t>(r.M) * stride);
    const Kernels& k = kernels();
    if (r.x_rows == nullptr) {
      k.to_float(r.x, r.x_element, r.M, r.K, x.get(), stride);
    } else {
      for (int m = 0; m < r.M; ++m) {
        const size_t offset = static_cast<size_t>(r.x_rows[m]) * r.K * size_of(r.x_element);
        k.to_float(static_cast<const char*>(r.x) + offset, r.x_element, 1, r.K,
                   x.get() + static_cast<size_t>(m) * stride, stride);
      }
    }
    p.x = x.get();
    p.x_stride = stride;
  }
  if (r.M <= kDirectRows) {
    run_direct(p, direct_columns(r));
  } else {
    run_panel(p);
  }
}

}  // namespace mixbit::cpu
