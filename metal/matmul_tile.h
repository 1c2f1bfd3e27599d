// A tile of y = x · valueᵀ on the matrix units, for many rows of x.
//
// A threadgroup of 4 simdgroups makes 64 rows x 64 columns (with SwiGLU 32 columns of both weights)
// and advances by 64 along K. Simdgroup s has 16 columns and all 64 rows: 8 x 2 sums of 8 x 8.
//
//   x        goes through threadgroup memory, in its own type, shared by the simdgroups.
//   weights  go from device memory to matrix fragments without a detour: of 64 codes of a row, the
//            lane that holds matrix row r decodes codes 8r … 8r + 7, each byte requested once.
//            Fragment j so takes k = 8r + j, an order of k that x's fragments follow.
//
// Weights are decoded to fp32, sums are fp32, outputs are rounded once. The RMSNorm of x needs no
// pass of its own: its weight goes into the decoded weights; its factor, whose sum of squares is
// taken while x passes by, into the sums.
#pragma once

#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "eights.h"
#include "elements.h"
#include "params.h"

using namespace metal;

constant constexpr short kDepth = 64;
constant constexpr short kStrips = kTileRows / 8;
constant constexpr short kChunks = kDepth / 8;
constant constexpr short kStride = kChunks + 1;  // so that neighbouring rows start in other banks
constant constexpr short kPasses = kTileRows * kChunks / kTileThreads;

// A thread's place in the threadgroup, and of its two elements in an 8 x 8 matrix: (row, column)
// and (row, column + 1).
struct TilePlace {
  short thread_index, simdgroup, row, column;

  TilePlace(ushort thread_index, ushort simdgroup, ushort lane)
      : thread_index(thread_index), simdgroup(simdgroup) {
    const short quad = lane / 4;
    row = (quad & 4) + (lane / 2) % 4;
    column = (quad & 2) * 2 + (lane % 2) * 2;
  }
};

// The rows of a tile where x and y have the same ones.
struct AllRows {
  uint first;
  short count;

  METAL_FUNC uint source(short i) const { return first + i; }
  METAL_FUNC uint target(short i) const { return first + i; }
};

METAL_FUNC AllRows rows_of_tile(uint tile, uint M) {
  const uint first = tile * kTileRows;
  return {first, short(min(uint(kTileRows), M - first))};
}

// What a tile reads and writes. Column n of both weights is row n of their matrices; b is a again
// without SwiGLU.
struct Problem {
  uint N, K;
  Matrix a, b;
  Array bias_a, bias_b;
  const device uchar* norm_weight;
  float eps;
  Array residual;
  device uchar* y;
  uint y_element;
};

template <typename T>
struct TileMemory {
  threadgroup Eight<T>* x;     // kTileRows · kStride
  threadgroup float* norms;    // kDepth
  threadgroup float* factors;  // kTileRows
};

// Thread t brings eight columns of rows t / 8, t / 8 + 16, … of the tile into threadgroup memory.
template <typename T, bool whole, bool has_norm>
struct TileLoader {
  const device T* source[kPasses];  // the thread's columns of the first step
  uint K;
  short rows, row, chunk;
  float squares[kPasses];

  template <typename Rows>
  TileLoader(const device T* x, uint K, Rows tile, TilePlace at)
      : K(K), rows(tile.count), row(at.thread_index / kChunks), chunk(at.thread_index % kChunks) {
    UNROLL for (short i = 0; i < kPasses; ++i) {
      const uint from = tile.source(min(row_of(i), short(rows - 1)));
      source[i] = x + (size_t(from) * K + 8 * chunk);
      squares[i] = 0.0f;
    }
  }

  METAL_FUNC short row_of(short pass) const { return row + pass * (kTileThreads / kChunks); }

  METAL_FUNC Eight<T> load(short pass, uint k0) const {
    const device T* p = source[pass] + k0;
    const uint k = k0 + 8 * chunk;
    const bool inside = row_of(pass) < rows && k < K;
    if (whole && inside) {
      return *(const device Eight<T>*)p;
    }
    Eight<T> e;
    UNROLL for (short j = 0; j < 8; ++j) {
      e.v[j] = T(0.0f);
      if (!whole && inside && k + j < K) {
        e.v[j] = p[j];
      }
    }
    return e;
  }

  METAL_FUNC void fill(threadgroup Eight<T>* tile, uint k0) {
    UNROLL for (short i = 0; i < kPasses; ++i) {
      const Eight<T> e = load(i, k0);
      tile[row_of(i) * kStride + chunk] = e;
      if (has_norm) {
        UNROLL for (short j = 0; j < 8; ++j) {
          squares[i] = fma(to_float(e.v[j]), to_float(e.v[j]), squares[i]);
        }
      }
    }
  }

  // 1 / √(mean of squares + eps) of each row. The eight threads of a row are neighbours.
  METAL_FUNC void row_factors(threadgroup float* factors, float eps) const {
    UNROLL for (short i = 0; i < kPasses; ++i) {
      float sum = squares[i];
      sum += simd_shuffle_xor(sum, 1);
      sum += simd_shuffle_xor(sum, 2);
      sum += simd_shuffle_xor(sum, 4);
      if (chunk == 0) {
        factors[row_of(i)] = rsqrt(sum / K + eps);
      }
    }
  }
};

// Adds a simdgroup's part of the tile to its sums: strip i of 8 rows, fragment f of 8 columns.
// Fragment 0 is rows first … first + 7 of a, fragment 1 as many rows of b from first + offset_b on.
template <typename F, typename G, bool whole, typename Norm, typename T, typename Loader>
METAL_FUNC void add_tile(Problem p, uint first, short offset_b, TilePlace at, TileMemory<T> memory,
                         thread Loader& loader, thread simdgroup_float8x8 (&sums)[kStrips][2]) {
  constexpr bool has_norm = !is_same<Norm, Absent>::value;
  const bool busy = first < p.N;
  const short strips = (loader.rows + 7) / 8;
  // Rows past the end repeat the last one; their sums are not stored.
  const short last = busy ? min(p.N - 1 - first, 15u) : 0;
  const Matrix a = Eights<F>::from(p.a, busy ? first : 0, p.K);
  const Matrix b = Eights<G>::from(p.b, busy ? first : 0, p.K);
  for (uint k0 = 0; k0 < p.K; k0 += kDepth) {
    const uint k = k0 + 8 * at.row;
    typename Eights<F>::Raw raw_a[2] = {};
    typename Eights<G>::Raw raw_b[2] = {};
    if (busy && k < p.K) {
      UNROLL for (short i = 0; i < 2; ++i) {
        raw_a[i] = Eights<F>::template load<whole>(a, min(short(at.column + i), last), p.K, k);
        raw_b[i] =
            Eights<G>::template load<whole>(b, min(short(at.column + i + offset_b), last), p.K, k);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    loader.fill(memory.x, k0);
    if (has_norm && at.thread_index < kDepth) {
      const uint i = k0 + at.thread_index;
      memory.norms[at.thread_index] = i < p.K ? value<Norm>(p.norm_weight, i) : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!busy) {
      continue;
    }
    simdgroup_float8x8 w[2][8];
    UNROLL for (short i = 0; i < 2; ++i) {
      float values_a[8], values_b[8];
      Eights<F>::decode(raw_a[i], values_a);
      Eights<G>::decode(raw_b[i], values_b);
      UNROLL for (short j = 0; j < 8; ++j) {
        const float norm = has_norm ? memory.norms[8 * at.row + j] : 1.0f;
        w[0][j].thread_elements()[i] = values_a[j] * norm;
        w[1][j].thread_elements()[i] = values_b[j] * norm;
      }
    }
    UNROLL for (short strip = 0; strip < kStrips; ++strip) {
      if (strip < strips) {
        const threadgroup Eight<T>* row = memory.x + (8 * strip + at.row) * kStride + at.column;
        const Eight<T> even = row[0], odd = row[1];
        UNROLL for (short j = 0; j < 8; ++j) {
          simdgroup_float8x8 x;
          x.thread_elements()[0] = to_float(even.v[j]);
          x.thread_elements()[1] = to_float(odd.v[j]);
          simdgroup_multiply_accumulate(sums[strip][0], x, w[0][j], sums[strip][0]);
          simdgroup_multiply_accumulate(sums[strip][1], x, w[1][j], sums[strip][1]);
        }
      }
    }
  }
}

// One tile from start to end. `Rows` says which rows of x and y it consists of.
template <typename F, typename G, bool swiglu, bool whole, typename Norm, typename T, typename Rows>
METAL_FUNC void make_tile(const device T* x, Problem p, uint column_tile, Rows rows, TilePlace at,
                          TileMemory<T> memory) {
  constexpr bool has_norm = !is_same<Norm, Absent>::value;
  const uint first = (column_tile * 4 + at.simdgroup) * (swiglu ? 8 : 16);
  simdgroup_float8x8 sums[kStrips][2];
  UNROLL for (short i = 0; i < kStrips; ++i) {
    sums[i][0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    sums[i][1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  TileLoader<T, whole, has_norm> loader(x, p.K, rows, at);
  add_tile<F, G, whole, Norm>(p, first, swiglu ? 0 : 8, at, memory, loader, sums);
  if (has_norm) {
    loader.row_factors(memory.factors, p.eps);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  UNROLL for (short strip = 0; strip < kStrips; ++strip) {
    const short i = 8 * strip + at.row;
    if (i >= rows.count) {
      continue;
    }
    const float factor = has_norm ? memory.factors[i] : 1.0f;
    const size_t target = size_t(rows.target(i)) * p.N;
    UNROLL for (short f = 0; f < (swiglu ? 1 : 2); ++f) {
      UNROLL for (short c = 0; c < 2; ++c) {
        const uint n = first + 8 * f + at.column + c;
        if (n >= p.N) {
          continue;
        }
        float v = sums[strip][f].thread_elements()[c] * factor + p.bias_a[n];
        if (swiglu) {
          v = silu(v) * (sums[strip][1].thread_elements()[c] * factor + p.bias_b[n]);
        }
        store_element(p.y, p.y_element, target + n, v + p.residual[target + n]);
      }
    }
  }
}
