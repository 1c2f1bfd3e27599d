// The matmul kernels, written once over Vec and compiled for each instruction set.
//
// One output is kLanes partial sums over k, lane l taking k = l mod kLanes in ascending order,
// added up in a fixed tree at the end. Both kernels below keep to that order, so they give the same
// bits and a row's result does not depend on how many rows come with it.
#pragma once

#include "cpu/kernels.h"
#include "cpu/matmul_output.h"
#include "cpu/vec_math.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

constexpr int kVecs = kBlock / kLanes;  // vectors of a block

// ---- rows of weights, 32 values at a time -----------------------------------------------------
// decode(b, w): values 32b .. 32b+31 as fp32.
// decode_tail(b, count, w): the first `count` of them, the rest zero; nothing past them is read.

template <class T>
struct DenseRow {
  const T* data;

  DenseRow(const Weights& w, int K, int n)
      : data(static_cast<const T*>(w.data) + static_cast<size_t>(n) * K) {}

  void decode(int b, Vec (&w)[kVecs]) const { load(data + b * kBlock, w); }

  void decode_tail(int b, int count, Vec (&w)[kVecs]) const {
    T padded[kBlock] = {};
    __builtin_memcpy(padded, data + b * kBlock, count * sizeof(T));
    load(padded, w);
  }

 private:
  static void load(const T* p, Vec (&w)[kVecs]) {
    for (int j = 0; j < kVecs; ++j) {
      w[j] = Vec::load(p + kLanes * j);
    }
  }
};

// Packed rows hold a whole number of blocks, but for nvfp4, whose groups are 16.
template <int bits>
struct AffineRow {
  const uint8_t* codes;
  const void* scales;
  const void* biases;
  Element element;  // of both; asked once a block, where one instance a type would triple the code
  size_t first;     // group of the row
  int group_shift;  // log2(blocks per group)

  AffineRow(const Weights& w, int K, int n)
      : codes(static_cast<const uint8_t*>(w.data) + static_cast<size_t>(n) * (K / 8 * bits)),
        scales(w.scales),
        biases(w.biases),
        element(w.element),
        first(static_cast<size_t>(n) * (K / w.group_size)),
        group_shift(w.group_size == 32   ? 0
                    : w.group_size == 64 ? 1
                                         : 2) {}

  void decode(int b, Vec (&w)[kVecs]) const {
    const size_t group = first + (b >> group_shift);
    const Vec scale = Vec::broadcast(load_element(scales, element, group));
    const Vec bias = Vec::broadcast(load_element(biases, element, group));
    unpack<bits>(codes + static_cast<size_t>(b) * 4 * bits, w);
    for (int j = 0; j < kVecs; ++j) {
      w[j] = Vec::fma(w[j], scale, bias);
    }
  }

  void decode_tail(int, int, Vec (&)[kVecs]) const { __builtin_unreachable(); }
};

struct Mxfp4Row {
  const uint8_t* codes;
  const uint8_t* scales;

  Mxfp4Row(const Weights& w, int K, int n)
      : codes(static_cast<const uint8_t*>(w.data) + static_cast<size_t>(n) * (K / 2)),
        scales(static_cast<const uint8_t*>(w.scales) + static_cast<size_t>(n) * (K / 32)) {}

  void decode(int b, Vec (&w)[kVecs]) const {
    const Vec scale = Vec::broadcast(from_e8m0(scales[b]));
    unpack_e2m1(codes + static_cast<size_t>(b) * 16, w);
    for (int j = 0; j < kVecs; ++j) {
      w[j] = w[j] * scale;
    }
  }

  void decode_tail(int, int, Vec (&)[kVecs]) const { __builtin_unreachable(); }
};

struct Mxfp8Row {
  const uint8_t* codes;
  const uint8_t* scales;

  Mxfp8Row(const Weights& w, int K, int n)
      : codes(static_cast<const uint8_t*>(w.data) + static_cast<size_t>(n) * K),
        scales(static_cast<const uint8_t*>(w.scales) + static_cast<size_t>(n) * (K / 32)) {}

  void decode(int b, Vec (&w)[kVecs]) const {
    const Vec scale = Vec::broadcast(from_e8m0(scales[b]));
    unpack_e4m3(codes + static_cast<size_t>(b) * kBlock, w);
    for (int j = 0; j < kVecs; ++j) {
      w[j] = w[j] * scale;
    }
  }

  void decode_tail(int, int, Vec (&)[kVecs]) const { __builtin_unreachable(); }
};

struct Nvfp4Row {
  const uint8_t* codes;
  const uint8_t* scales;

  Nvfp4Row(const Weights& w, int K, int n)
      : codes(static_cast<const uint8_t*>(w.data) + static_cast<size_t>(n) * (K / 2)),
        scales(static_cast<const uint8_t*>(w.scales) + static_cast<size_t>(n) * (K / 16)) {}

  void decode(int b, Vec (&w)[kVecs]) const {
    scale(codes + static_cast<size_t>(b) * 16, from_e4m3(scales[2 * b]),
          from_e4m3(scales[2 * b + 1]), w);
  }

  void decode_tail(int b, int count, Vec (&w)[kVecs]) const {
    uint8_t padded[16] = {};
    __builtin_memcpy(padded, codes + static_cast<size_t>(b) * 16, count / 2);
    scale(padded, from_e4m3(scales[2 * b]), 0.f, w);
  }

 private:
  static void scale(const uint8_t* block, float low, float high, Vec (&w)[kVecs]) {
    unpack_e2m1(block, w);
    for (int j = 0; j < kVecs; ++j) {
      w[j] = w[j] * Vec::broadcast(j < kVecs / 2 ? low : high);
    }
  }
};

// ---- the two kernels --------------------------------------------------------------------------

// R rows x C columns, weights decoded in registers.
template <class Row, int R, int C>
static inline void direct_tile(const Matmul& p, int m, int n) {
  Vec acc[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      acc[r][c] = Vec::zero();
    }
  }
  auto column = [&](int c) { return Row(p.w, p.K, n + c); };
  const Row rows[] = {column(0), column(C > 1 ? 1 : 0), column(C > 2 ? 2 : 0),
                      column(C > 3 ? 3 : 0)};
  const float* x = p.x + m * p.x_stride;
  auto accumulate = [&](int b, int c, const Vec(&w)[kVecs]) __attribute__((always_inline)) {
    for (int j = 0; j < kVecs; ++j) {
      for (int r = 0; r < R; ++r) {
        acc[r][c] =
            Vec::fma(w[j], Vec::load(x + r * p.x_stride + b * kBlock + kLanes * j), acc[r][c]);
      }
    }
  };
  const int blocks = p.K / kBlock;
  for (int b = 0; b < blocks; ++b) {
    for (int c = 0; c < C; ++c) {
      Vec w[kVecs];
      rows[c].decode(b, w);
      accumulate(b, c, w);
    }
  }
  if (const int tail = p.K % kBlock; tail != 0) {
    for (int c = 0; c < C; ++c) {
      Vec w[kVecs];
      rows[c].decode_tail(blocks, tail, w);
      accumulate(blocks, c, w);
    }
  }
  for (int r = 0; r < R; ++r) {
    float sums[C];
    for (int c = 0; c < C; ++c) {
      sums[c] = acc[r][c].sum();
    }
    write_row(p, m + r, n, C, sums);
  }
}

template <class Row, int R>
static void direct_rows(const Matmul& p, int m, int n0, int n1) {
  constexpr int C = R <= 2 ? 4 : 2;  // eight sums in registers beside the weights
  int n = n0;
  for (; n + C <= n1; n += C) {
    direct_tile<Row, R, C>(p, m, n);
  }
  for (; n < n1; ++n) {
    direct_tile<Row, R, 1>(p, m, n);
  }
}

// R rows x C columns of a decoded panel over `depth` values of k, continuing the sums in `acc`. Not
// inlined, as the constants of the decoding around it would take registers from the weights.
template <int R, int C>
__attribute__((noinline)) static void panel_tile(const float* x, size_t x_stride,
                                                 const float* panel, int depth, float* acc) {
  Vec sums[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      sums[r][c] = Vec::load(acc + (r * kPanelColumns + c) * kLanes);
    }
  }
  for (int k = 0; k < depth; k += kLanes) {
    Vec w[C];
    for (int c = 0; c < C; ++c) {
      w[c] = Vec::load(panel + c * kPanelDepth + k);
    }
    for (int r = 0; r < R; ++r) {
      const Vec value = Vec::load(x + r * x_stride + k);
      for (int c = 0; c < C; ++c) {
        sums[r][c] = Vec::fma(w[c], value, sums[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      sums[r][c].store(acc + (r * kPanelColumns + c) * kLanes);
    }
  }
}

template <int R>
static inline void panel_columns(const float* x, size_t x_stride, const float* panel, int depth,
                                 int columns, float* acc) {
  int c = 0;
  for (; c + 3 <= columns; c += 3) {
    panel_tile<R, 3>(x, x_stride, panel + c * kPanelDepth, depth, acc + c * kLanes);
  }
  for (; c < columns; ++c) {
    panel_tile<R, 1>(x, x_stride, panel + c * kPanelDepth, depth, acc + c * kLanes);
  }
}

template <class Row>
static inline void decode_panel(const Row& row, int K, int block, int blocks, float* panel) {
  Vec w[kVecs];
  for (int b = 0; b < blocks; ++b) {
    const int left = K - (block + b) * kBlock;
    if (left >= kBlock) {
      row.decode(block + b, w);
    } else {
      row.decode_tail(block + b, left, w);
    }
    for (int j = 0; j < kVecs; ++j) {
      w[j].store(panel + b * kBlock + kLanes * j);
    }
  }
}

template <class Row>
static void panel(const Matmul& p, int m0, int m1, int n0, int n1, float* scratch) {
  float* decoded = scratch;
  float* acc = scratch + kPanelColumns * kPanelDepth;
  const int columns = n1 - n0;
  __builtin_memset(acc, 0, sizeof(float) * (m1 - m0) * kPanelColumns * kLanes);
  const int blocks = round_up(p.K, kBlock) / kBlock;
  for (int b = 0; b < blocks; b += kPanelDepth / kBlock) {
    const int count = blocks - b < kPanelDepth / kBlock ? blocks - b : kPanelDepth / kBlock;
    const int depth = count * kBlock;
    for (int c = 0; c < columns; ++c) {
      decode_panel(Row(p.w, p.K, n0 + c), p.K, b, count, decoded + c * kPanelDepth);
    }
    int m = m0;
    const float* x = p.x + m * p.x_stride + b * kBlock;
    float* sums = acc;
    for (; m + 4 <= m1; m += 4, x += 4 * p.x_stride, sums += 4 * kPanelColumns * kLanes) {
      panel_columns<4>(x, p.x_stride, decoded, depth, columns, sums);
    }
    for (; m < m1; ++m, x += p.x_stride, sums += kPanelColumns * kLanes) {
      panel_columns<1>(x, p.x_stride, decoded, depth, columns, sums);
    }
  }
  for (int m = m0; m < m1; ++m, acc += kPanelColumns * kLanes) {
    float sums[kPanelColumns];
    for (int c = 0; c < columns; ++c) {
      sums[c] = Vec::load(acc + c * kLanes).sum();
    }
    write_row(p, m, n0, columns, sums);
  }
}

// ---- one instance per storage format ----------------------------------------------------------

template <class F>
static inline void with_row(const Weights& w, const F& f) {
  switch (w.kind) {
    case WeightKind::dense:
      return with_element(w.element, [&]<class T>(T) { f.template operator()<DenseRow<T>>(); });
    case WeightKind::affine:
      return with_bits(w.bits, [&]<int bits>() { f.template operator()<AffineRow<bits>>(); });
    case WeightKind::mxfp4:
      return f.template operator()<Mxfp4Row>();
    case WeightKind::mxfp8:
      return f.template operator()<Mxfp8Row>();
    default:
      return f.template operator()<Nvfp4Row>();
  }
}

static void matmul_direct(const Matmul& p, int m0, int m1, int n0, int n1) {
  with_row(p.w, [&]<class Row>() {
    switch (m1 - m0) {
      case 1:
        return direct_rows<Row, 1>(p, m0, n0, n1);
      case 2:
        return direct_rows<Row, 2>(p, m0, n0, n1);
      case 3:
        return direct_rows<Row, 3>(p, m0, n0, n1);
      default:
        return direct_rows<Row, 4>(p, m0, n0, n1);
    }
  });
}

static void matmul_panel(const Matmul& p, int m0, int m1, int n0, int n1, float* scratch) {
  with_row(p.w, [&]<class Row>() { panel<Row>(p, m0, m1, n0, n1, scratch); });
}

template <class T>
static void rows_to_float(const T* src, int rows, int count, float* dst, int dst_stride) {
  for (int r = 0; r < rows; ++r, src += count, dst += dst_stride) {
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      Vec::load(src + i).store(dst + i);
    }
    for (; i < count; ++i) {
      dst[i] = to_float(src[i]);
    }
    for (; i < dst_stride; ++i) {
      dst[i] = 0.f;
    }
  }
}

static void rms_norm(float* x, size_t x_stride, int rows, int K, const void* weight, Element e,
                     float eps) {
  for (int m = 0; m < rows; ++m, x += x_stride) {
    // Eight partial sums whatever the vectors' width, and no FMA.
    float squares[8] = {};
    for (int k = 0; k < K; k += 8) {  // rows are padded with zeros
      for (int i = 0; i < 8; ++i) {
        squares[i] += x[k + i] * x[k + i];
      }
    }
    float sum = 0.f;
    for (float square : squares) {
      sum += square;
    }
    const float factor = 1.f / __builtin_sqrtf(sum / static_cast<float>(K) + eps);
    with_element(e, [&]<class T>(T) {
      const T* w = static_cast<const T*>(weight);
      for (int k = 0; k < K; ++k) {
        x[k] = x[k] * factor * to_float(w[k]);
      }
    });
  }
}

static void convert_rows(const void* src, Element e, int rows, int count, float* dst,
                         int dst_stride) {
  with_element(e, [&]<class T>(T) {
    rows_to_float(static_cast<const T*>(src), rows, count, dst, dst_stride);
  });
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
