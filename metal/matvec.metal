// y = x · valueᵀ for one row of x, or a few, and up to five weights that share x: what decoding a
// token spends its time on. Weights are read once for each tile of at most eight rows of x.
//
//   matvec         one output a weight:  y_i = norm(x) · value_iᵀ + bias_i + residual
//   matvec_swiglu  one for two weights:  y = SiLU(norm(x) · gateᵀ) · (norm(x) · upᵀ)
//
// Rows. Half a SIMD group, 16 lanes, has four rows of weights (SwiGLU: two of gate and the same two
// of up). Threadgroups have 16 rows (SwiGLU 8) when x is a single row, else 32 (16): the parts one
// after the other along the grid's x; tiles of x's rows along its y.
//
// K. In a step the 16 lanes have a block of 32 values each, side by side:
//
//     lane        0        1              15       0        1
//     k       0 … 31   32 … 63  …  480 … 511   512 … 543   …
//                            step 0          |   step 1
//
// so that lanes of a row read neighbouring words. A sum over k is: products within the block in
// order, by FMA; blocks of the lane in order; then the 16 lanes in a butterfly, farthest first.
// This order is the same for one row of x and for a tile, and so are the bits of the result.
//
// A single row of x each lane reads for itself, 32 values at once for four rows of weights. A
// tile's rows go through threadgroup memory in fp32, 16 blocks of each at a time: half a SIMD group
// reads, normalises and converts one row of x for all 32 rows of weights, with the same lanes that
// would do it for themselves if the row were alone.
//
// RMSNorm: its weight is multiplied onto x when that is read, the factor 1 / √(mean x² + ε) onto
// the sums at the end. The squares are summed along with everything else.
#include <metal_stdlib>

#include "elements.h"
#include "params.h"
#include "row_product.h"

using namespace metal;

// ---- a tile of x -------------------------------------------------------------------------------

// Adds the lane's shares to sums[M · r + m] and leaves the norm's factor of row m in factors[m].
template <short M, short rows, bool ragged, typename T, typename Norm, typename F, typename G>
METAL_FUNC void multiply_tile(thread const Problem<T, Norm, F, G>& p, threadgroup float4* staged,
                              threadgroup float* x_sums, threadgroup float* factors,
                              thread float* sums) {
  constexpr short others = kMatvecRows - rows;
  // Where both formats agree on the factors of x they are in the staged x, else in the digits.
  constexpr bool agree = others == 0 || is_same<F, G>::value;
  const short column = p.lane % kLanes;
  const short own = 2 * p.simdgroup + p.lane / kLanes;  // the row of x that this half stages
  constexpr short row_size = kBlock / 4 * kLanes;
  threadgroup float4* in_column = staged + column;
  threadgroup float4* in_own = in_column + own * row_size;
  float squares = 0.0f;
  for (uint step = 0; step < p.steps(); ++step) {
    const uint k = p.first_k(step);
    const bool on = k < p.K;
    const short present = on ? p.w_rows : 0;
    typename F::Digits f_digits[rows];
    typename F::Scale f_scales[rows];
    UNROLL for (short r = 0; r < rows; ++r) {
      const typename F::Block block = F::template load<ragged>(p.f, r, step, r < present);
      f_digits[r] = F::open(block);
      f_scales[r] = F::scale(p.f, r, step, r < present);
    }
    typename G::Digits g_digits[others + 1];
    typename G::Scale g_scales[others + 1];
    UNROLL for (short r = 0; r < others; ++r) {
      const typename G::Block block = G::template load<ragged>(p.g, r, step, r < present);
      g_digits[r] = G::open(block);
      g_scales[r] = G::scale(p.g, r, step, r < present);
    }

    if (own < M) {
      const XBlock x = read_x<ragged>(p.x + (size_t(own) * p.K + k), p.norm + k, p.K - k,
                                      on && own < p.x_rows, squares);
      x_sums[own * kLanes + column] = x.sum;
      UNROLL for (short j = 0; j < kBlock; j += 4) {
        float4 v;
        UNROLL for (short i = 0; i < 4; ++i) {
          v[i] = x.v[j + i] * (agree ? F::factor(j + i) : 1.0f);
        }
        in_own[j / 4 * kLanes] = v;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float dots[kMatvecRows * M];
    UNROLL for (short i = 0; i < kMatvecRows * M; ++i) {
      dots[i] = 0.0f;
    }
    UNROLL for (short j = 0; j < kBlock; j += 4) {
      float digits[kMatvecRows][4];
      UNROLL for (short i = 0; i < 4; ++i) {
        UNROLL for (short r = 0; r < rows; ++r) {
          digits[r][i] =
              F::digit(f_digits[r], f_scales[r], j + i) * (agree ? 1.0f : F::factor(j + i));
        }
        UNROLL for (short r = 0; r < others; ++r) {
          digits[rows + r][i] =
              G::digit(g_digits[r], g_scales[r], j + i) * (agree ? 1.0f : G::factor(j + i));
        }
      }
      UNROLL for (short m = 0; m < M; ++m) {
        const float4 v = in_column[m * row_size + j / 4 * kLanes];
        UNROLL for (short r = 0; r < kMatvecRows; ++r) {
          UNROLL for (short i = 0; i < 4; ++i) {
            dots[r * M + m] = fma(digits[r][i], v[i], dots[r * M + m]);
          }
        }
      }
    }
    UNROLL for (short m = 0; m < M; ++m) {
      const float x_sum = x_sums[m * kLanes + column];
      UNROLL for (short r = 0; r < rows; ++r) {
        const short i = r * M + m;
        sums[i] = F::finish(f_scales[r], dots[i], x_sum, sums[i]);
      }
      UNROLL for (short r = 0; r < others; ++r) {
        const short i = (rows + r) * M + m;
        sums[i] = G::finish(g_scales[r], dots[i], x_sum, sums[i]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (is_same<Norm, Absent>::value) {
    return;
  }
  const float factor = norm_factor<Norm>(squares, p.K, p.eps, p.lane);
  if (own < M && column == 0) {
    factors[own] = factor;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// ---- outputs ------------------------------------------------------------------------------------

// One weight of the launch with what belongs to it.
struct Part {
  Matrix weight;
  Array bias;
  device uchar* y;
};

template <typename T, typename Norm>
struct Task {
  constant MatvecParams& params;
  const device T* x;
  const device Norm* norm;
  Array residual;
  uint2 group;
  ushort simdgroup, lane;
  // For tiles: 16 blocks of each row of x, their sums, and the norm's factors.
  threadgroup float4* staged;
  threadgroup float* x_sums;
  threadgroup float* factors;
};

// Makes the lane's outputs of a weight, or with swiglu of two.
template <short M, bool ragged, typename F, typename G, bool swiglu, typename T, typename Norm>
METAL_FUNC void make_outputs(thread const Task<T, Norm>& t, MatvecPart shape, Part part,
                             Part other) {
  constexpr short rows = swiglu ? kMatvecRows / 2 : kMatvecRows;
  constexpr short groups = M == 1 ? kMatvecGroups : kMatvecTileGroups;
  const uint half_group = ((t.group.x - shape.first) * groups + t.simdgroup) * 2 + t.lane / kLanes;
  const uint n0 = half_group * rows, m0 = t.group.y * M;
  const Place at(n0, t.lane);
  const Problem<T, Norm, F, G> p{t.x + size_t(m0) * t.params.K,
                                 t.norm,
                                 t.params.K,
                                 t.params.eps,
                                 short(min(uint(M), t.params.M - m0)),
                                 short(clamp(int(shape.N) - int(n0), 0, int(rows))),
                                 typename F::Rows(part.weight, at, t.params.K),
                                 typename G::Rows(other.weight, at, t.params.K),
                                 t.lane,
                                 t.simdgroup};
  float sums[kMatvecRows * M];
  UNROLL for (short i = 0; i < kMatvecRows * M; ++i) {
    sums[i] = 0.0f;
  }
  float factor = 1.0f;
  if (M == 1) {
    factor = multiply_row<rows, ragged>(p, sums);
  } else {
    multiply_tile<M, rows, ragged>(p, t.staged, t.x_sums, t.factors, sums);
  }

  using Sums = LaneSums<rows * M>;
  Sums::add(sums, t.lane);
  if (swiglu) {
    Sums::add(sums + rows * M, t.lane);
  }
  if (!Sums::owner(t.lane)) {
    return;
  }
  UNROLL for (short i = 0; i < Sums::count; ++i) {
    const ushort slot = Sums::slot(t.lane) + i;
    const short r = slot / M, m = slot % M;
    const uint n = n0 + r;
    if (r >= p.w_rows || m >= p.x_rows) {
      continue;
    }
    const float scale = is_same<Norm, Absent>::value || M == 1 ? factor : t.factors[m];
    float y = fma(sums[i], scale, part.bias[n]);
    if (swiglu) {
      y = silu(y) * fma(sums[rows * M + i], scale, other.bias[n]);
    }
    const size_t out = size_t(m0 + m) * shape.N + n;
    store_element(part.y, shape.y, out, y + t.residual[out]);
  }
}

// ---- kernels ------------------------------------------------------------------------------------

// The part's format is number `format` of those listed.
template <short M, bool ragged, typename F, typename T, typename Norm>
METAL_FUNC void make_part(uint, thread const Task<T, Norm>& t, MatvecPart shape, Part part) {
  make_outputs<M, ragged, F, F, false>(t, shape, part, part);
}

template <short M, bool ragged, typename F, typename G, typename... More, typename T, typename Norm>
METAL_FUNC void make_part(uint format, thread const Task<T, Norm>& t, MatvecPart shape, Part part) {
  if (format == 0) {
    make_outputs<M, ragged, F, F, false>(t, shape, part, part);
  } else {
    make_part<M, ragged, G, More...>(format - 1, t, shape, part);
  }
}

#define STAGING                                                      \
  threadgroup float4 staged[M == 1 ? 1 : M * (kBlock / 4) * kLanes]; \
  threadgroup float x_sums[M * kLanes];                              \
  threadgroup float factors[M];

template <typename T, short M, typename Norm, bool ragged, typename... Formats>
[[kernel]] void matvec(
    constant MatvecParams& params [[buffer(0)]], const device T* x [[buffer(1)]],
    const device Norm* norm [[buffer(2)]], const device uchar* residual [[buffer(3)]],
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
    device uchar* y4 [[buffer(28)]], uint2 group [[threadgroup_position_in_grid]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {
  STAGING
  uint slot = 0;
  while (slot + 1 < params.num_parts && group.x >= params.parts[slot + 1].first) {
    ++slot;
  }
  const MatvecPart shape = params.parts[slot];
  const Part parts[] = {{{w0, scales0, biases0}, {bias0, shape.bias}, y0},
                        {{w1, scales1, biases1}, {bias1, shape.bias}, y1},
                        {{w2, scales2, biases2}, {bias2, shape.bias}, y2},
                        {{w3, scales3, biases3}, {bias3, shape.bias}, y3},
                        {{w4, scales4, biases4}, {bias4, shape.bias}, y4}};
  const Part part = slot == 0   ? parts[0]
                    : slot == 1 ? parts[1]
                    : slot == 2 ? parts[2]
                    : slot == 3 ? parts[3]
                                : parts[4];
  const Task<T, Norm> task{params, x,         norm, {residual, params.residual},
                           group,  simdgroup, lane, staged,
                           x_sums, factors};
  make_part<M, ragged, Formats...>(shape.format, task, shape, part);
}

template <typename T, short M, typename Norm, bool ragged, typename Gate, typename Up = Gate>
[[kernel]] void matvec_swiglu(
    constant MatvecParams& params [[buffer(0)]], const device T* x [[buffer(1)]],
    const device Norm* norm [[buffer(2)]], const device uchar* residual [[buffer(3)]],
    const device uchar* w0 [[buffer(4)]], const device uchar* scales0 [[buffer(5)]],
    const device uchar* biases0 [[buffer(6)]], const device uchar* bias0 [[buffer(7)]],
    device uchar* y0 [[buffer(8)]], const device uchar* w1 [[buffer(9)]],
    const device uchar* scales1 [[buffer(10)]], const device uchar* biases1 [[buffer(11)]],
    const device uchar* bias1 [[buffer(12)]], uint2 group [[threadgroup_position_in_grid]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {
  STAGING
  const Part gate{{w0, scales0, biases0}, {bias0, params.parts[0].bias}, y0};
  const Part up{{w1, scales1, biases1}, {bias1, params.parts[1].bias}, nullptr};
  const Task<T, Norm> task{params, x,         norm, {residual, params.residual},
                           group,  simdgroup, lane, staged,
                           x_sums, factors};
  make_outputs<M, ragged, Gate, Up, true>(task, params.parts[0], gate, up);
}
