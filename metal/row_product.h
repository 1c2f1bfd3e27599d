// The product of one row of x with a few rows of weights, by half a SIMD group; see matvec.metal,
// which says who has what and in which order it is summed.
#pragma once

#include <metal_stdlib>

#include "dequantize.h"
#include "elements.h"
#include "lane_sums.h"
#include "params.h"

using namespace metal;

// ---- a block of x -------------------------------------------------------------------------------

// A lane's block of a row of x in fp32, with the norm's weight.
struct XBlock {
  float v[kBlock];
  float sum;
};

// How x is read. `squares` collects those of x as it is, where there is a norm.
template <bool ragged, typename T>
METAL_FUNC XBlock read_x(const device T* x, const device Absent*, uint left, bool on,
                         thread float& squares) {
  const Values<T> values = load_values<ragged>(x, left, on);
  XBlock block;
  block.sum = 0.0f;
  UNROLL for (short j = 0; j < kBlock; ++j) {
    block.v[j] = values[j];
    block.sum += block.v[j];
  }
  return block;
}

template <bool ragged, typename T, typename Norm>
METAL_FUNC XBlock read_x(const device T* x, const device Norm* weight, uint left, bool on,
                         thread float& squares) {
  const Values<T> values = load_values<ragged>(x, left, on);
  const Values<Norm> weights = load_values<ragged>(weight, left, on);
  XBlock block;
  block.sum = 0.0f;
  UNROLL for (short j = 0; j < kBlock; ++j) {
    squares = fma(values[j], values[j], squares);
    block.v[j] = values[j] * weights[j];
    block.sum = fma(values[j], weights[j], block.sum);
  }
  return block;
}

// ---- the product --------------------------------------------------------------------------------
// F is the format of the first `rows` of a lane's rows of weights, G that of the others, if it has
// others.

// A lane's problem: its rows of weights, and the tile of x.
template <typename T, typename Norm, typename F, typename G>
struct Problem {
  const device T* x;  // the tile's first row
  const device Norm* norm;
  uint K;
  float eps;
  short x_rows, w_rows;  // that there are, of the tile and of the lane's of each weight
  typename F::Rows f;
  typename G::Rows g;
  ushort lane;

  METAL_FUNC uint steps() const { return (K + kLanes * kBlock - 1) / (kLanes * kBlock); }
  METAL_FUNC uint first_k(uint step) const { return (step * kLanes + lane % kLanes) * kBlock; }
};

template <typename Norm>
METAL_FUNC float norm_factor(float squares, uint K, float eps, ushort lane) {
  if (is_same<Norm, Absent>::value) {
    return 1.0f;
  }
  LaneSums<1>::add(&squares, lane);
  return rsqrt(squares / float(K) + eps);
}

// Adds to sums[r] what this step has of row r of a weight.
template <typename F, short rows, bool ragged>
METAL_FUNC void multiply(thread const typename F::Rows& weight, thread const XBlock& x, uint step,
                         short present, thread float* sums) {
  typename F::Block blocks[rows];
  typename F::Scale scales[rows];
  UNROLL for (short r = 0; r < rows; ++r) {
    blocks[r] = F::template load<ragged>(weight, r, step, r < present);
    scales[r] = F::scale(weight, r, step, r < present);
  }
  float v[kBlock];
  UNROLL for (short j = 0; j < kBlock; ++j) {
    v[j] = x.v[j] * F::factor(j);
  }
  UNROLL for (short r = 0; r < rows; ++r) {
    const typename F::Digits digits = F::open(blocks[r]);
    float dot = 0.0f;
    UNROLL for (short j = 0; j < kBlock; ++j) {
      dot = fma(F::digit(digits, scales[r], j), v[j], dot);
    }
    sums[r] = F::finish(scales[r], dot, x.sum, sums[r]);
  }
}

// One row of x: adds the lane's shares to sums[r] and returns 1 / √(mean x² + ε).
template <short rows, bool ragged, typename T, typename Norm, typename F, typename G>
METAL_FUNC float multiply_row(thread const Problem<T, Norm, F, G>& p, thread float* sums) {
  float squares = 0.0f;
  for (uint step = 0; step < p.steps(); ++step) {
    const uint k = p.first_k(step);
    const bool on = k < p.K;
    const short present = on ? p.w_rows : 0;
    const XBlock x = read_x<ragged>(p.x + k, p.norm + k, p.K - k, on, squares);
    multiply<F, rows, ragged>(p.f, x, step, present, sums);
    if (rows < kMatvecRows) {
      multiply<G, kMatvecRows - rows, ragged>(p.g, x, step, present, sums + rows);
    }
  }
  return norm_factor<Norm>(squares, p.K, p.eps, p.lane);
}
