#include "cpu/matmul.h"

#include <algorithm>
#include <numeric>

#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace mixbit::cpu {

namespace {

// Waking another thread costs some 10 µs, in which one core multiplies this many weights.
constexpr int64_t kWorkPerTask = 128 * 1024;

// f(m, rows, source) for runs of rows that lie side by side in x: rows m … m + rows − 1.
template <class F>
void over_rows(const MatmulRequest& r, const F& f) {
  if (r.x_rows == nullptr) {
    return f(0, r.M, r.x);
  }
  for (int m = 0; m < r.M; ++m) {
    const size_t offset = static_cast<size_t>(r.x_rows[m]) * r.K * size_of(r.x_element);
    f(m, 1, static_cast<const char*>(r.x) + offset);
  }
}

// The rows of x in fp32, padded to whole blocks, and where a panel reads them on whole vectors.
struct Rows {
  Scratch owned;
  const float* x;
  size_t stride;
};

Rows rows_of(const MatmulRequest& r) {
  const bool aligned = reinterpret_cast<uintptr_t>(r.x) % (kMaxLanes * sizeof(float)) == 0;
  if (r.x_element == Element::f32 && r.x_rows == nullptr && r.norm == nullptr &&
      r.K % kBlock == 0 && (aligned || r.M <= kDirectRows)) {
    return {nullptr, static_cast<const float*>(r.x), static_cast<size_t>(r.K)};
  }
  const int stride = round_up(r.K, kBlock);
  Scratch x = make_scratch(static_cast<size_t>(r.M) * stride);
  over_rows(r, [&](int m, int rows, const void* source) {
    kernels().to_float(source, r.x_element, rows, r.K, x.get() + static_cast<size_t>(m) * stride,
                       stride);
  });
  if (r.norm != nullptr) {
    kernels().rms_norm(x.get(), stride, r.M, r.K, r.norm, r.norm_element, r.eps);
  }
  const float* data = x.get();
  return {std::move(x), data, static_cast<size_t>(stride)};
}

// Bits of x's integers in a product, or 0 where it stays in fp32.
int x_bits_of(const MatmulRequest& r, const MatmulPart& part) {
  if (r.x_element == Element::f32 || part.w.kind != WeightKind::affine) {
    return 0;
  }
  return part.w.bits < 8 && r.M <= kIntegerDirectRows ? part.activation_bits : 16;
}

// The rows of x in integers, for weights of one width and group size.
struct IntegerRows {
  int bits, group_size, x_bits;
  Scratch codes;  // [M, integer_columns] of x_bits
  std::vector<float> scales, sums;

  bool fits(const Weights& w, int wanted_x_bits) const {
    return w.bits == bits && w.group_size == group_size && wanted_x_bits == x_bits;
  }
};

IntegerRows integer_rows_of(const Rows& x, int M, int K, const Weights& w, int x_bits) {
  const size_t columns = integer_columns(K, w.group_size), groups = columns / w.group_size;
  const size_t row_floats = columns * x_bits / (8 * sizeof(float));
  IntegerRows integers{w.bits,
                       w.group_size,
                       x_bits,
                       make_scratch(M * row_floats),
                       std::vector<float>(M * groups),
                       std::vector<float>(M * groups)};
  const int rows = static_cast<int>(kWorkPerTask / columns + 1);
  parallel_for((M + rows - 1) / rows, [&](int task) {
    const size_t begin = size_t(task) * rows;
    kernels().quantize_rows(
        x.x + begin * x.stride, x.stride, std::min<int>(rows, M - static_cast<int>(begin)), K,
        w.group_size, w.bits, x_bits, integers.codes.get() + begin * row_floats,
        integers.scales.data() + begin * groups, integers.sums.data() + begin * groups);
  });
  return integers;
}

// x in every form that the parts want.
struct Inputs {
  Rows floats;
  std::vector<IntegerRows> integers;
};

Inputs inputs_of(const MatmulRequest& r) {
  Inputs inputs{rows_of(r), {}};
  for (const MatmulPart& part : r.parts) {
    const int x_bits = x_bits_of(r, part);
    const auto fits = [&](const IntegerRows& rows) { return rows.fits(part.w, x_bits); };
    if (x_bits != 0 && std::none_of(inputs.integers.begin(), inputs.integers.end(), fits)) {
      inputs.integers.push_back(integer_rows_of(inputs.floats, r.M, r.K, part.w, x_bits));
    }
  }
  return inputs;
}

Matmul problem_of(const MatmulRequest& r, const MatmulPart& part, const Inputs& inputs) {
  Matmul p{};
  p.M = r.M;
  p.N = part.N;
  p.K = r.K;
  p.x_bits = x_bits_of(r, part);
  if (p.x_bits != 0) {
    for (const IntegerRows& rows : inputs.integers) {
      if (rows.fits(part.w, p.x_bits)) {
        p.x_codes = rows.codes.get();
        p.x_scales = rows.scales.data();
        p.x_sums = rows.sums.data();
      }
    }
  } else {
    p.x = inputs.floats.x;
    p.x_stride = inputs.floats.stride;
  }
  p.w = part.w;
  p.bias = part.bias;
  p.bias_element = part.bias_element;
  p.residual = part.residual;
  p.residual_element = part.residual_element;
  p.y = part.y;
  p.y_element = part.y_element;
  p.y_rows = r.y_rows;
  p.y_stride = part.N;
  return p;
}

// A rectangle of one part's output.
struct Tile {
  int part, m0, m1, n0, n1;
};

void run_tile(const Matmul& p, const Tile& t) {
  const Kernels& k = kernels();
  if (p.x_codes != nullptr && p.M <= kIntegerDirectRows) {
    return k.matmul_integers(p, t.m0, t.m1, t.n0, t.n1);
  }
  if (p.x_codes != nullptr) {
    return k.matmul_int16_panel(p, t.m0, t.m1, t.n0, t.n1, thread_scratch(kPanelScratch));
  }
  if (p.M <= kDirectRows) {
    return k.matmul_direct(p, t.m0, t.m1, t.n0, t.n1);
  }
  float* buffer = thread_scratch(kPanelScratch);
  for (int n = t.n0; n < t.n1; n += kPanelColumns) {
    k.matmul_panel(p, t.m0, t.m1, n, std::min(t.n1, n + kPanelColumns), buffer);
  }
}

// Both products of a tile in fp32, then SiLU(first) · second, rounded once.
void run_swiglu_tile(Matmul gate, Matmul up, const Tile& t) {
  const int rows = t.m1 - t.m0, columns = t.n1 - t.n0;
  // Ahead of the buffer that run_tile uses.
  float* products = thread_scratch(kPanelScratch + 2 * size_t(rows) * columns) + kPanelScratch;
  const Matmul target = gate;
  for (Matmul* p : {&gate, &up}) {
    p->y = p == &gate ? products : products + size_t(rows) * columns;
    p->y_element = Element::f32;
    p->y_rows = nullptr;
    p->y_stride = columns;
    p->y_row = t.m0;
    p->y_column = t.n0;
    run_tile(*p, t);
  }
  const float *gates = products, *ups = products + size_t(rows) * columns;
  // Rows that lie side by side in y, as many at a time.
  const int run = target.y_rows == nullptr ? rows : 1;
  for (int m = 0; m < rows; m += run) {
    const int row = target.y_rows == nullptr ? t.m0 : target.y_rows[t.m0 + m];
    kernels().swiglu(gates + size_t(m) * columns, ups + size_t(m) * columns, run, columns, target.y,
                     target.y_element, size_t(row) * target.N + t.n0, target.N);
  }
}

constexpr int kPanelUnit = std::lcm(kPanelColumns, 2 * kMaxLanes);

// Columns of a tile: whole register tiles, enough work to be worth a wake-up, and several tiles for
// every thread.
int tile_columns(const MatmulRequest& r, int N) {
  const int rows = std::min(r.M, kPanelRows);
  // Whole tiles of the kernel, and of the integer one as well.
  const int unit = r.M <= kDirectRows ? 4 : r.M <= kIntegerDirectRows ? kPanelColumns : kPanelUnit;
  const int64_t per_column = int64_t(r.K) * rows * (r.swiglu ? 2 : 1);
  // Above kDirectRows a weight costs about a sixteenth per row of what it costs below.
  const int64_t work = r.M <= kDirectRows ? kWorkPerTask : 16 * kWorkPerTask;
  const int64_t worth = std::min<int64_t>(N, work / std::max<int64_t>(per_column, 1) + 1);
  const int64_t shared = r.M <= kDirectRows ? N / (8 * num_threads()) : 0;
  return round_up(static_cast<int>(std::max(worth, shared)), unit);
}

std::vector<Tile> tiles_of(const MatmulRequest& r) {
  std::vector<Tile> tiles;
  const int parts = r.swiglu ? 1 : static_cast<int>(r.parts.size());
  // Neighbouring tiles share their rows of x, which then stay in L2.
  for (int m = 0; m < r.M; m += kPanelRows) {
    for (int part = 0; part < parts; ++part) {
      const int N = r.parts[part].N;
      const int columns = tile_columns(r, N);
      for (int n = 0; n < N; n += columns) {
        tiles.push_back({part, m, std::min(r.M, m + kPanelRows), n, std::min(N, n + columns)});
      }
    }
  }
  return tiles;
}

}  // namespace

void matmul(const MatmulRequest& r) {
  const std::vector<Tile> tiles = tiles_of(r);
  if (tiles.empty()) {
    return;
  }
  const Inputs inputs = inputs_of(r);
  std::vector<Matmul> problems;
  for (const MatmulPart& part : r.parts) {
    problems.push_back(problem_of(r, part, inputs));
  }
  parallel_for(static_cast<int>(tiles.size()), [&](int i) {
    if (r.swiglu) {
      run_swiglu_tile(problems[0], problems[1], tiles[i]);
    } else {
      run_tile(problems[tiles[i].part], tiles[i]);
    }
  });
}

}  // namespace mixbit::cpu
