// Products of many rows with weights that each row picks from a stack of experts, rows sorted by
// expert (sort_rows of experts.metal); see matmul_tile.h.
//
// Threadgroups: row tiles along x, those past the last one have nothing to do; column tiles along
// y.
#include "matmul_tile.h"
#include "params.h"

// Rows of one expert. Row `order[…]` of y is one of M in a block; `share` blocks in a row have one
// block of x.
struct SortedRows {
  const device uint* order;
  uint M, share;
  short count;

  METAL_FUNC uint source(short i) const {
    const uint row = order[i];
    return row / (M * share) * M + row % M;
  }
  METAL_FUNC uint target(short i) const { return order[i]; }
};

template <typename F>
METAL_FUNC Matrix expert_matrix(Matrix stack, uint expert, uint N, uint K) {
  return Eights<F>::from(stack, expert * N, K);
}

// An index out of range gives NaN.
template <uint columns>
METAL_FUNC void store_nan(device uchar* y, uint element, SortedRows rows, uint N, uint column_tile,
                          uint thread_index) {
  for (uint i = thread_index; i < uint(rows.count) * columns; i += kTileThreads) {
    const uint n = column_tile * columns + i % columns;
    if (n < N) {
      store_element(y, element, size_t(rows.target(i / columns)) * N + n, NAN);
    }
  }
}

template <typename F, typename G, bool swiglu, bool whole, typename T>
METAL_FUNC void gather_tile(constant GatherParams& params, const device T* x,
                            const device uint* order, const device RowTile* tiles, Matrix a,
                            Matrix b, device uchar* y, uint2 group, TilePlace at,
                            TileMemory<T> memory) {
  const RowTile tile = tiles[group.x];
  const SortedRows rows{order + tile.first, params.M, params.share, short(tile.count)};
  if (tile.expert >= params.experts) {
    store_nan<swiglu ? kTileColumns / 2 : kTileColumns>(y, params.y, rows, params.N, group.y,
                                                        at.thread_index);
    return;
  }
  const Problem p{params.N,
                  params.K,
                  expert_matrix<F>(a, tile.expert, params.N, params.K),
                  expert_matrix<G>(b, tile.expert, params.N, params.K),
                  {},
                  {},
                  nullptr,
                  0.0f,
                  {},
                  y,
                  params.y};
  make_tile<F, G, swiglu, whole, Absent>(x, p, group.y, rows, at, memory);
}

template <typename T, bool whole, typename F>
[[kernel, max_total_threads_per_threadgroup(kTileThreads)]] void gather_qmm(
    constant GatherParams& params [[buffer(0)]], const device T* x [[buffer(1)]],
    const device uint* order [[buffer(2)]], const device RowTile* tiles [[buffer(3)]],
    const device uchar* w [[buffer(4)]], const device uchar* scales [[buffer(5)]],
    const device uchar* biases [[buffer(6)]], device uchar* y [[buffer(8)]],
    const device uint* num_tiles [[buffer(14)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup Eight<T> xs[kTileRows * kStride];
  if (group.x >= *num_tiles) {
    return;
  }
  const Matrix matrix{w, scales, biases};
  gather_tile<F, F, false, whole, T>(params, x, order, tiles, matrix, matrix, y, group.xy,
                                     TilePlace(thread_index, simdgroup, lane), {xs});
}

template <typename T, bool whole, typename Gate, typename Up = Gate>
[[kernel, max_total_threads_per_threadgroup(kTileThreads)]] void gather_qmm_swiglu(
    constant GatherParams& params [[buffer(0)]], const device T* x [[buffer(1)]],
    const device uint* order [[buffer(2)]], const device RowTile* tiles [[buffer(3)]],
    const device uchar* gate [[buffer(4)]], const device uchar* gate_scales [[buffer(5)]],
    const device uchar* gate_biases [[buffer(6)]], device uchar* y [[buffer(8)]],
    const device uchar* up [[buffer(9)]], const device uchar* up_scales [[buffer(10)]],
    const device uchar* up_biases [[buffer(11)]], const device uint* num_tiles [[buffer(14)]],
    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup Eight<T> xs[kTileRows * kStride];
  if (group.x >= *num_tiles) {
    return;
  }
  gather_tile<Gate, Up, true, whole, T>(params, x, order, tiles, {gate, gate_scales, gate_biases},
                                        {up, up_scales, up_biases}, y, group.xy,
                                        TilePlace(thread_index, simdgroup, lane), {xs});
}
