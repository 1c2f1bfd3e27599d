// y = x · valueᵀ for many rows of x, for up to five weights that share x; see matmul_tile.h.
//
// Threadgroups: row tiles along x, so that those which run together share their weights; along y
// the column tiles of all parts, one part after the other.
#include "matmul_tile.h"
#include "params.h"

// Part `slot` of the launch as a problem, its formats as types: Fs lists those that occur.
template <typename T, bool whole, typename Norm, typename F>
METAL_FUNC void make_part(uint format, const device T* x, Problem p, uint column_tile, AllRows rows,
                          TilePlace at, TileMemory<T> memory) {
  make_tile<F, F, false, whole, Norm>(x, p, column_tile, rows, at, memory);
}

template <typename T, bool whole, typename Norm, typename F, typename G, typename... Fs>
METAL_FUNC void make_part(uint format, const device T* x, Problem p, uint column_tile, AllRows rows,
                          TilePlace at, TileMemory<T> memory) {
  if (format == 0) {
    make_tile<F, F, false, whole, Norm>(x, p, column_tile, rows, at, memory);
  } else {
    make_part<T, whole, Norm, G, Fs...>(format - 1, x, p, column_tile, rows, at, memory);
  }
}

template <typename T, typename Norm, bool whole, typename... Fs>
[[kernel, max_total_threads_per_threadgroup(kTileThreads)]] void qmm(
    constant MatvecParams& params [[buffer(0)]], const device T* x [[buffer(1)]],
    const device uchar* norm_weight [[buffer(2)]], const device uchar* residual [[buffer(3)]],
    const device uchar* w0 [[buffer(4)]], const device uchar* scales0 [[buffer(5)]],
    const device uchar* biases0 [[buffer(6)]], const device uchar* bias0 [[buffer(7)]],
    device uchar* y0 [[buffer(8)]], const device uchar* w1 [[buffer(9)]],
    const device uchar* scales1 [[buffer(10)]], const device uchar* biases1 [[buffer(11)]],
    const device uchar* bias1 [[buffer(12)]], device uchar* y1 [[buffer(13)]],
    const device uchar* w2 [[buffer(14)]], const device uchar* scales2 [[buffer(15)]],
    const device uchar* biases2 [[buffer(16)]], const device uchar* bias2 [[buffer(17)]],
    device uchar* y2 [[buffer(18)]], const device uchar* w3 [[buffer(19)]],
    const device uchar* scales3 [[buffer(20)]], const device uchar* biases3 [[buffer(21)]],
    const device uchar* bias3 [[buffer(22)]], device uchar* y3 [[buffer(23)]],
    const device uchar* w4 [[buffer(24)]], const device uchar* scales4 [[buffer(25)]],
    const device uchar* biases4 [[buffer(26)]], const device uchar* bias4 [[buffer(27)]],
    device uchar* y4 [[buffer(28)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup Eight<T> xs[kTileRows * kStride];
  threadgroup float norms[kDepth];
  threadgroup float factors[kTileRows];
  uint slot = 0;
  while (slot + 1 < params.num_parts && group.y >= params.parts[slot + 1].first) {
    ++slot;
  }
  const MatvecPart part = params.parts[slot];
  Problem p{part.N,
            params.K,
            {w0, scales0, biases0},
            {},
            {bias0, part.bias},
            {},
            norm_weight,
            params.eps,
            {residual, params.residual},
            y0,
            part.y};
  if (slot == 1) {
    p.a = {w1, scales1, biases1}, p.bias_a.p = bias1, p.y = y1;
  } else if (slot == 2) {
    p.a = {w2, scales2, biases2}, p.bias_a.p = bias2, p.y = y2;
  } else if (slot == 3) {
    p.a = {w3, scales3, biases3}, p.bias_a.p = bias3, p.y = y3;
  } else if (slot == 4) {
    p.a = {w4, scales4, biases4}, p.bias_a.p = bias4, p.y = y4;
  }
  p.b = p.a;
  const AllRows rows = rows_of_tile(group.x, params.M);
  make_part<T, whole, Norm, Fs...>(part.format, x, p, group.y - part.first, rows,
                                   TilePlace(thread_index, simdgroup, lane), {xs, norms, factors});
}

// SiLU(x · gateᵀ) · (x · upᵀ): gate is slot 0, up slot 1.
template <typename T, typename Norm, bool whole, typename Gate, typename Up = Gate>
[[kernel, max_total_threads_per_threadgroup(kTileThreads)]] void qmm_swiglu(
    constant MatvecParams& params [[buffer(0)]], const device T* x [[buffer(1)]],
    const device uchar* norm_weight [[buffer(2)]], const device uchar* residual [[buffer(3)]],
    const device uchar* gate [[buffer(4)]], const device uchar* gate_scales [[buffer(5)]],
    const device uchar* gate_biases [[buffer(6)]], const device uchar* gate_bias [[buffer(7)]],
    device uchar* y [[buffer(8)]], const device uchar* up [[buffer(9)]],
    const device uchar* up_scales [[buffer(10)]], const device uchar* up_biases [[buffer(11)]],
    const device uchar* up_bias [[buffer(12)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup Eight<T> xs[kTileRows * kStride];
  threadgroup float norms[kDepth];
  threadgroup float factors[kTileRows];
  const Problem p{params.parts[0].N,
                  params.K,
                  {gate, gate_scales, gate_biases},
                  {up, up_scales, up_biases},
                  {gate_bias, params.parts[0].bias},
                  {up_bias, params.parts[1].bias},
                  norm_weight,
                  params.eps,
                  {residual, params.residual},
                  y,
                  params.parts[0].y};
  const AllRows rows = rows_of_tile(group.x, params.M);
  make_tile<Gate, Up, true, whole, Norm>(x, p, group.y, rows,
                                         TilePlace(thread_index, simdgroup, lane),
                                         TileMemory<T>{xs, norms, factors});
}
