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
// This order is the same for one row of x and for a tile, and so are the bits of the result: what
// may be one operation or two is written as an FMA, lest a compiler choose. A tile
// has so many sums that the lanes exchange them through threadgroup memory instead of shuffling.
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

// Sums in threadgroup memory start in different banks.
constant constexpr short kShareStride = 33;

// A tile in threadgroup memory.
struct StagedTile {
  threadgroup float4* x;       // 16 blocks of each row
  threadgroup float* x_sums;   // of these blocks
  threadgroup float* factors;  // of the norm, for each row
};

// Adds the lane's shares of F's rows to sums[rows · m + r], of G's to those behind, and leaves the
// norm's factor of row m in factors[m] of `tile`. Row `own` of x is for the lane's half to stage.
template <short M, short rows, bool ragged, typename T, typename Norm, typename F, typename G>
METAL_FUNC void multiply_tile(thread const Problem<T, Norm, F, G>& p, short own, StagedTile tile,
                              thread float* sums) {
  constexpr short others = kMatvecRows - rows;
  // Where both formats agree on the factors of x they are in the staged x, else in the digits.
  constexpr bool agree = others == 0 || is_same<F, G>::value;
  const short column = p.lane % kLanes;
  constexpr short row_size = kBlock / 4 * kLanes;
  threadgroup float4* in_column = tile.x + column;
  threadgroup float4* in_own = in_column + own * row_size;
  threadgroup float* sum_in_column = tile.x_sums + column;
  float squares = 0.0f;
  for (uint step = 0; step < p.steps(); ++step) {
    const uint k = p.first_k(step);
    const bool on = k < p.K;
    const short present = on ? p.w_rows : 0;
    typename F::Block f_blocks[rows];
    typename F::Scale f_scales[rows];
    UNROLL for (short r = 0; r < rows; ++r) {
      f_blocks[r] = F::template load<ragged>(p.f, r, step, r < present);
      f_scales[r] = F::scale(p.f, r, step, r < present);
    }
    typename G::Block g_blocks[others + 1];
    typename G::Scale g_scales[others + 1];
    UNROLL for (short r = 0; r < others; ++r) {
      g_blocks[r] = G::template load<ragged>(p.g, r, step, r < present);
      g_scales[r] = G::scale(p.g, r, step, r < present);
    }

    if (own < M) {
      const XBlock x = read_x<ragged>(p.x + (size_t(own) * p.K + k), p.norm + k, p.K - k,
                                      on && own < p.x_rows, squares);
      sum_in_column[own * kLanes] = x.sum;
      UNROLL for (short j = 0; j < kBlock; j += 4) {
        float4 v;
        UNROLL for (short i = 0; i < 4; ++i) {
          v[i] = x.v[j + i] * (agree ? F::factor(j + i) : 1.0f);
        }
        in_own[j / 4 * kLanes] = v;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    typename F::Digits f_digits[rows];
    UNROLL for (short r = 0; r < rows; ++r) {
      f_digits[r] = F::open(f_blocks[r]);
    }
    typename G::Digits g_digits[others + 1];
    UNROLL for (short r = 0; r < others; ++r) {
      g_digits[r] = G::open(g_blocks[r]);
    }
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
          const short at = r < rows ? rows * m + r : rows * M + others * m + r - rows;
          UNROLL for (short i = 0; i < 4; ++i) {
            dots[at] = fma(digits[r][i], v[i], dots[at]);
          }
        }
      }
    }
    UNROLL for (short m = 0; m < M; ++m) {
      const float x_sum = sum_in_column[m * kLanes];
      UNROLL for (short r = 0; r < rows; ++r) {
        const short i = rows * m + r;
        sums[i] = F::finish(f_scales[r], dots[i], x_sum, sums[i]);
      }
      UNROLL for (short r = 0; r < others; ++r) {
        const short i = rows * M + others * m + r;
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
    tile.factors[own] = factor;
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
  const device uchar* residual;
  uint2 group;
  ushort simdgroup, lane;
  StagedTile tile;
};

// Where a lane's outputs go.
struct Target {
  MatvecPart shape;
  Part part, other;  // other: up, with swiglu
  Array residual;
  uint n;     // the lane's first row of weights
  size_t at;  // the output that it makes of the tile's first row of x
};

// Output number `at`, of row n of the weights. `sum` and with swiglu `other_sum` are the products
// but for the norm's factor.
template <bool swiglu>
METAL_FUNC void store_output(Target to, size_t at, uint n, float factor, float sum,
                             float other_sum) {
  float y = fma(sum, factor, to.part.bias[n]);
  if (swiglu) {
    y = fma(silu(y), fma(other_sum, factor, to.other.bias[n]), to.residual[at]);
  } else {
    y += to.residual[at];
  }
  store_element(to.part.y, to.shape.y, at, y);
}

template <short rows, bool ragged, bool swiglu, typename T, typename Norm, typename F, typename G>
METAL_FUNC void make_row_outputs(thread const Problem<T, Norm, F, G>& p, Target to) {
  using Sums = LaneSums<rows>;
  float sums[kMatvecRows] = {};
  const float factor = multiply_row<rows, ragged>(p, sums);
  Sums::add(sums, p.lane);
  if (swiglu) {
    Sums::add(sums + rows, p.lane);
  }
  const short r = Sums::slot(p.lane);
  if (Sums::owner(p.lane) && r < p.w_rows) {
    store_output<swiglu>(to, to.at + r, to.n + r, factor, sums[0], swiglu ? sums[rows] : 0.0f);
  }
}

// The sum of what 16 lanes have, by LaneSums' additions.
METAL_FUNC float sum_of_lanes(const threadgroup float* shares) {
  float v[kLanes];
  UNROLL for (short i = 0; i < kLanes; ++i) {
    v[i] = shares[i];
  }
  UNROLL for (short distance = kLanes / 2; distance > 0; distance /= 2) {
    UNROLL for (short i = 0; i < distance; ++i) {
      v[i] += v[i + distance];
    }
  }
  return v[0];
}

template <short M, short rows, bool ragged, bool swiglu, typename T, typename Norm, typename F,
          typename G>
METAL_FUNC void make_tile_outputs(thread const Problem<T, Norm, F, G>& p, Target to,
                                  short half_group, StagedTile tile) {
  float sums[kMatvecRows * M] = {};
  multiply_tile<M, rows, ragged>(p, half_group, tile, sums);

  // The lanes' shares of a sum side by side, where x was. Lane l of a half then has outputs l,
  // l + 16, ...: row l % rows of the weights, rows l / rows, ... of x.
  threadgroup float* shares =
      (threadgroup float*)tile.x + half_group / 2 * (kMatvecRows * M * kShareStride);
  UNROLL for (short i = 0; i < kMatvecRows * M; ++i) {
    shares[i * kShareStride + p.lane] = sums[i];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const ushort column = p.lane % kLanes;
  const threadgroup float* share = shares + (column * kShareStride + p.lane - column);
  const ushort r = column % rows;
  ushort m = column / rows;
  size_t at = to.at + size_t(m) * to.shape.N + r;
  UNROLL for (short i = 0; i < rows * M; i += kLanes) {
    if (m < p.x_rows && r < p.w_rows) {
      store_output<swiglu>(to, at, to.n + r, is_same<Norm, Absent>::value ? 1.0f : tile.factors[m],
                           sum_of_lanes(share),
                           swiglu ? sum_of_lanes(share + rows * M * kShareStride) : 0.0f);
    }
    share += kLanes * kShareStride;
    m += kLanes / rows;
    at += kLanes / rows * to.shape.N;
  }
}

// Makes the lane's outputs of a weight, or with swiglu of two.
template <short M, bool ragged, typename F, typename G, bool swiglu, typename T, typename Norm>
METAL_FUNC void make_outputs(thread const Task<T, Norm>& t, MatvecPart shape, Part part,
                             Part other) {
  constexpr short rows = swiglu ? kMatvecRows / 2 : kMatvecRows;
  constexpr short half_groups = 2 * (M == 1 ? kMatvecGroups : kMatvecTileGroups);
  const uint half_group = 2 * t.simdgroup + t.lane / kLanes;
  const uint n0 = ((t.group.x - shape.first) * half_groups + half_group) * rows;
  const uint m0 = t.group.y * M;
  const Place at(n0, t.lane);
  const Problem<T, Norm, F, G> p{t.x + size_t(m0) * t.params.K,
                                 t.norm,
                                 t.params.K,
                                 t.params.eps,
                                 short(min(uint(M), t.params.M - m0)),
                                 short(clamp(int(shape.N) - int(n0), 0, int(rows))),
                                 typename F::Rows(part.weight, at, t.params.K),
                                 typename G::Rows(other.weight, at, t.params.K),
                                 t.lane};
  const Target to{
      shape, part, other, {t.residual, t.params.residual}, n0, size_t(m0) * shape.N + n0};
  if (M == 1) {
    make_row_outputs<rows, ragged, swiglu>(p, to);
  } else {
    make_tile_outputs<M, rows, ragged, swiglu>(p, to, half_group, t.tile);
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

#define TILE_MEMORY                                                         \
  threadgroup float4 xs[M == 1 ? 1 : M * kMatvecTileGroups * kShareStride]; \
  threadgroup float x_sums[M * kLanes];                                     \
  threadgroup float factors[M];

template <typename T, short M, typename Norm, bool ragged, typename... Formats>
[[kernel, max_total_threads_per_threadgroup(32 * kMatvecTileGroups)]] void matvec(
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
  TILE_MEMORY
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
  const Task<T, Norm> task{params, x,         norm, residual,
                           group,  simdgroup, lane, {xs, x_sums, factors}};
  make_part<M, ragged, Formats...>(shape.format, task, shape, part);
}

template <typename T, short M, typename Norm, bool ragged, typename Gate, typename Up = Gate>
[[kernel, max_total_threads_per_threadgroup(32 * kMatvecTileGroups)]] void matvec_swiglu(
    constant MatvecParams& params [[buffer(0)]], const device T* x [[buffer(1)]],
    const device Norm* norm [[buffer(2)]], const device uchar* residual [[buffer(3)]],
    const device uchar* w0 [[buffer(4)]], const device uchar* scales0 [[buffer(5)]],
    const device uchar* biases0 [[buffer(6)]], const device uchar* bias0 [[buffer(7)]],
    device uchar* y0 [[buffer(8)]], const device uchar* w1 [[buffer(9)]],
    const device uchar* scales1 [[buffer(10)]], const device uchar* biases1 [[buffer(11)]],
    const device uchar* bias1 [[buffer(12)]], uint2 group [[threadgroup_position_in_grid]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {
  TILE_MEMORY
  const Part gate{{w0, scales0, biases0}, {bias0, params.parts[0].bias}, y0};
  const Part up{{w1, scales1, biases1}, {bias1, params.parts[1].bias}, nullptr};
  const Task<T, Norm> task{params, x,         norm, residual,
                           group,  simdgroup, lane, {xs, x_sums, factors}};
  make_outputs<M, ragged, Gate, Up, true>(task, params.parts[0], gate, up);
}
