// Products of single rows with weights that each row picks from a stack of experts: what decoding a
// token does in a mixture of experts. The weights are read once for each row of x.
//
//   gather_matvec         y = x · valueᵀ                       for each row and slot
//   gather_matvec_swiglu  y = SiLU(x · gateᵀ) · (x · upᵀ)      likewise
//   gather_matvec_mix     y = Σ over slots of score · (x · valueᵀ), slot after slot
//
// Half a SIMD group has four rows of weights, with SwiGLU two of gate and of up, as in
// matvec.metal. Threadgroups: rows of weights along x; along y the rows of all blocks, with `mix`
// of all tokens.
#include <metal_stdlib>

#include "elements.h"
#include "params.h"
#include "row_product.h"

using namespace metal;

// Where a lane's rows of weights are, and what it makes of them.
struct RowPlace {
  uint n;         // the first
  short present;  // how many there are
  ushort lane;

  RowPlace(uint group, ushort simdgroup, ushort lane, short rows, uint N)
      : n(((group * kMatvecGroups + simdgroup) * 2 + lane / kLanes) * rows),
        present(clamp(int(N) - int(n), 0, int(rows))),
        lane(lane) {}
};

// Row `row` of x with the lane's rows of one expert: adds to sums. NaN for an expert out of range.
template <bool ragged, typename F, typename G, short rows, typename T>
METAL_FUNC void add_expert(constant GatherParams& params, const device T* x, uint row, uint expert,
                           Matrix f, Matrix g, RowPlace at, thread float* sums) {
  const bool known = expert < params.experts;
  const Place place((known ? expert * params.N : 0) + at.n, at.lane);
  const Problem<T, Absent, F, G> p{x + size_t(row) * params.K,
                                   nullptr,
                                   params.K,
                                   0.0f,
                                   1,
                                   known ? at.present : short(0),
                                   typename F::Rows(f, place, params.K),
                                   typename G::Rows(g, place, params.K),
                                   at.lane};
  multiply_row<rows, ragged>(p, sums);
  UNROLL for (short r = 0; r < kMatvecRows; ++r) {
    sums[r] = known ? sums[r] : NAN;
  }
}

// Row of x that goes with row `row` of the blocks.
METAL_FUNC uint source_row(constant GatherParams& params, uint row) {
  return row / (params.M * params.share) * params.M + row % params.M;
}

template <typename T, bool ragged, typename F>
[[kernel, max_total_threads_per_threadgroup(32 * kMatvecGroups)]] void gather_matvec(
    constant GatherParams& params [[buffer(0)]], const device T* x [[buffer(1)]],
    const device uint* indices [[buffer(2)]], const device uchar* w [[buffer(4)]],
    const device uchar* scales [[buffer(5)]], const device uchar* biases [[buffer(6)]],
    device uchar* y [[buffer(8)]], uint2 group [[threadgroup_position_in_grid]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {
  using Sums = LaneSums<kMatvecRows>;
  const RowPlace at(group.x, simdgroup, lane, kMatvecRows, params.N);
  const Matrix matrix{w, scales, biases};
  float sums[kMatvecRows] = {};
  add_expert<ragged, F, F, kMatvecRows>(params, x, source_row(params, group.y),
                                        indices[group.y / params.M], matrix, matrix, at, sums);
  Sums::add(sums, lane);
  const short r = Sums::slot(lane);
  if (Sums::owner(lane) && r < at.present) {
    store_element(y, params.y, size_t(group.y) * params.N + at.n + r, sums[0]);
  }
}

template <typename T, bool ragged, typename Gate, typename Up = Gate>
[[kernel, max_total_threads_per_threadgroup(32 * kMatvecGroups)]] void gather_matvec_swiglu(
    constant GatherParams& params [[buffer(0)]], const device T* x [[buffer(1)]],
    const device uint* indices [[buffer(2)]], const device uchar* gate [[buffer(4)]],
    const device uchar* gate_scales [[buffer(5)]], const device uchar* gate_biases [[buffer(6)]],
    device uchar* y [[buffer(8)]], const device uchar* up [[buffer(9)]],
    const device uchar* up_scales [[buffer(10)]], const device uchar* up_biases [[buffer(11)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {
  constexpr short rows = kMatvecRows / 2;
  using Sums = LaneSums<rows>;
  const RowPlace at(group.x, simdgroup, lane, rows, params.N);
  float sums[kMatvecRows] = {};
  add_expert<ragged, Gate, Up, rows>(params, x, source_row(params, group.y),
                                     indices[group.y / params.M], {gate, gate_scales, gate_biases},
                                     {up, up_scales, up_biases}, at, sums);
  Sums::add(sums, lane);
  Sums::add(sums + rows, lane);
  const short r = Sums::slot(lane);
  if (Sums::owner(lane) && r < at.present) {
    store_element(y, params.y, size_t(group.y) * params.N + at.n + r, silu(sums[0]) * sums[rows]);
  }
}

template <typename T, bool ragged, typename F>
[[kernel, max_total_threads_per_threadgroup(32 * kMatvecGroups)]] void gather_matvec_mix(
    constant GatherParams& params [[buffer(0)]], const device T* x [[buffer(1)]],
    const device uint* indices [[buffer(2)]], const device float* scores [[buffer(3)]],
    const device uchar* w [[buffer(4)]], const device uchar* scales [[buffer(5)]],
    const device uchar* biases [[buffer(6)]], device uchar* y [[buffer(8)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {
  using Sums = LaneSums<kMatvecRows>;
  const RowPlace at(group.x, simdgroup, lane, kMatvecRows, params.N);
  const Matrix matrix{w, scales, biases};
  const uint token = group.y / params.M, row = group.y % params.M;
  float mixed[kMatvecRows] = {};
  for (uint s = 0; s < params.slots; ++s) {
    const uint block = token * params.slots + s;
    float sums[kMatvecRows] = {};
    add_expert<ragged, F, F, kMatvecRows>(params, x, source_row(params, block * params.M + row),
                                          indices[block], matrix, matrix, at, sums);
    UNROLL for (short r = 0; r < kMatvecRows; ++r) {
      mixed[r] = fma(scores[block], sums[r], mixed[r]);
    }
  }
  Sums::add(mixed, lane);
  const short r = Sums::slot(lane);
  if (Sums::owner(lane) && r < at.present) {
    store_element(y, params.y, size_t(group.y) * params.N + at.n + r, mixed[0]);
  }
}
