// Statistics of two models' logits over spans of the vocabulary, logits never stored.
//
// A threadgroup has 64 rows (tokens of text) and a span of kVocabularySpan columns (tokens of the
// vocabulary), 64 at a time: matmul_tile.h makes both models' 64 x 64 logits, p and q, in fp32. A
// quarter of their columns at a time, those of one simdgroup, goes through threadgroup memory to
// the threads: thread t < 64 has p's side of row t, thread 64 + t q's side of it. So every row is
// summed in the order of its columns, whatever else runs.
//
// Threadgroups: row tiles along x, so that those which run together share their weights; along y
// the spans.
#include "logit_side.h"
#include "matmul_tile.h"
#include "params.h"

constant constexpr short kSlice = kTileColumns / 4;
// One more, so that neighbouring rows start in other banks.
constant constexpr short kSliceStride = kSlice + 1;

// p's rows less q's.
template <typename T, typename U, bool whole>
struct DifferenceLoader {
  TileLoader<T, whole, false> p;
  TileLoader<U, whole, false> q;
  short rows;

  DifferenceLoader(const device T* p, const device U* q, uint K, AllRows tile, TilePlace at)
      : p(p, K, tile, at), q(q, K, tile, at), rows(tile.count) {}

  METAL_FUNC void fill(threadgroup Eight<float>* tile, uint k0) {
    UNROLL for (short i = 0; i < kPasses; ++i) {
      const Eight<T> a = p.load(i, k0);
      const Eight<U> b = q.load(i, k0);
      Eight<float> difference;
      UNROLL for (short j = 0; j < 8; ++j) {
        difference.v[j] = to_float(a.v[j]) - to_float(b.v[j]);
      }
      tile[p.row_of(i) * kStride + p.chunk] = difference;
    }
  }
};

using TileSums = simdgroup_float8x8[kStrips][2];

METAL_FUNC void clear(thread TileSums& sums) {
  UNROLL for (short i = 0; i < kStrips; ++i) {
    sums[i][0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    sums[i][1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
}

METAL_FUNC Problem head_problem(uint vocabulary, KlDivergenceHead head, Matrix weight,
                                const device uchar* bias) {
  Problem p{};
  p.N = vocabulary;
  p.K = head.K;
  p.a = p.b = weight;
  p.bias_a = {bias, head.bias};
  return p;
}

// One side's slices of logits, kTileRows · kSliceStride.
struct Slices {
  threadgroup float* p;
  threadgroup float* q;
};

// A simdgroup's 16 columns from `first` on. With `is_difference` q's sums are p's less q's.
template <bool is_difference>
METAL_FUNC void put_slice(Slices slices, thread TileSums& p, thread TileSums& q, Array bias_p,
                          Array bias_q, uint first, uint vocabulary, TilePlace at) {
  UNROLL for (short strip = 0; strip < kStrips; ++strip) {
    UNROLL for (short f = 0; f < 2; ++f) {
      UNROLL for (short c = 0; c < 2; ++c) {
        const short column = 8 * f + at.column + c;
        const uint n = min(first + column, vocabulary - 1);
        const short to = (8 * strip + at.row) * kSliceStride + column;
        const float x = p[strip][f].thread_elements()[c] + bias_p[n];
        const float second = q[strip][f].thread_elements()[c];
        slices.p[to] = x;
        slices.q[to] = is_difference ? x - second : second + bias_q[n];
      }
    }
  }
}

METAL_FUNC void store_sides(device float* tile, bool is_q, LogitSide side) {
  tile[2 * is_q] = side.largest;
  tile[2 * is_q + 1] = side.sum.value();
  tile[4 + is_q] = side.total_cost();
  tile[6 + is_q] = side.target;
  device float* top = tile + 8 + 2 * kTopLogits * is_q;
  UNROLL for (short i = 0; i < kTopLogits; ++i) {
    top[i] = side.top[i];
    top[kTopLogits + i] = side.top_tokens[i];
  }
}

// A threadgroup's work. `q_loader` brings what meets G: q's rows, or with `is_difference` p's less
// q's.
template <typename F, typename G, bool whole, bool is_difference, typename T, typename U,
          typename PLoader, typename QLoader>
METAL_FUNC void compare(KlDivergenceParams params, Problem p, Problem q, thread PLoader& p_loader,
                        thread QLoader& q_loader, TileMemory<T> p_memory, TileMemory<U> q_memory,
                        Slices slices, const device int* targets, device float* tiles, AllRows rows,
                        uint span, TilePlace at) {
  const short row = at.thread_index % kTileRows;
  const bool is_q = at.thread_index / kTileRows;
  const bool busy = row < rows.count;
  const uint target = busy ? targets[rows.source(row)] : 0;
  const threadgroup float* own = (is_q ? slices.q : slices.p) + row * kSliceStride;
  const threadgroup float* other = (is_q ? slices.p : slices.q) + row * kSliceStride;
  LogitSide side = LogitSide::nothing();
  const uint begin = span * kVocabularySpan;
  const uint end = min(begin + kVocabularySpan, params.vocabulary);
  for (uint tile = begin; tile < end; tile += kTileColumns) {
    TileSums p_sums, q_sums;
    clear(p_sums);
    clear(q_sums);
    const uint own_columns = tile + kSlice * at.simdgroup;
    add_tile<F, F, whole, Absent>(p, own_columns, 8, at, p_memory, p_loader, p_sums);
    add_tile<G, G, whole, Absent>(q, own_columns, 8, at, q_memory, q_loader, q_sums);
    for (short slice = 0; slice < 4; ++slice) {
      const uint first = tile + kSlice * slice;
      if (at.simdgroup == slice) {
        put_slice<is_difference>(slices, p_sums, q_sums, p.bias_a, q.bias_a, first,
                                 params.vocabulary, at);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (busy && first < end) {
        side.add(own, other, min(uint(kSlice), end - first), first, target);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
  if (busy) {
    const uint spans = (params.vocabulary + kVocabularySpan - 1) / kVocabularySpan;
    store_sides(tiles + (size_t(rows.target(row)) * spans + span) * kLogitStatistics, is_q, side);
  }
}

// `Wide` is the wider one of T and U.
template <typename T, typename U, typename Wide, bool whole, typename F, typename G>
[[kernel, max_total_threads_per_threadgroup(kTileThreads)]] void kl_divergence(
    constant KlDivergenceParams& params [[buffer(0)]], const device T* p_hidden [[buffer(1)]],
    const device U* q_hidden [[buffer(2)]], const device int* targets [[buffer(3)]],
    const device uchar* p_w [[buffer(4)]], const device uchar* p_scales [[buffer(5)]],
    const device uchar* p_biases [[buffer(6)]], const device uchar* p_bias [[buffer(7)]],
    device float* tiles [[buffer(8)]], const device uchar* q_w [[buffer(9)]],
    const device uchar* q_scales [[buffer(10)]], const device uchar* q_biases [[buffer(11)]],
    const device uchar* q_bias [[buffer(12)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup Eight<Wide> xs[kTileRows * kStride];
  threadgroup float p_slice[kTileRows * kSliceStride];
  threadgroup float q_slice[kTileRows * kSliceStride];
  const TilePlace at(thread_index, simdgroup, lane);
  const AllRows rows = rows_of_tile(group.x, params.M);
  TileLoader<T, whole, false> p_loader(p_hidden, params.heads[0].K, rows, at);
  TileLoader<U, whole, false> q_loader(q_hidden, params.heads[1].K, rows, at);
  compare<F, G, whole, false>(
      params, head_problem(params.vocabulary, params.heads[0], {p_w, p_scales, p_biases}, p_bias),
      head_problem(params.vocabulary, params.heads[1], {q_w, q_scales, q_biases}, q_bias), p_loader,
      q_loader, TileMemory<T>{(threadgroup Eight<T>*)xs, nullptr, nullptr},
      TileMemory<U>{(threadgroup Eight<U>*)xs, nullptr, nullptr}, {p_slice, q_slice}, targets,
      tiles, rows, group.y, at);
}

// Both models have p's head: q's logits are p's less its product with the difference of the hidden
// states, which keeps small divergences clear of rounding.
template <typename T, typename U, bool whole, typename F>
[[kernel, max_total_threads_per_threadgroup(kTileThreads)]] void kl_divergence_shared(
    constant KlDivergenceParams& params [[buffer(0)]], const device T* p_hidden [[buffer(1)]],
    const device U* q_hidden [[buffer(2)]], const device int* targets [[buffer(3)]],
    const device uchar* w [[buffer(4)]], const device uchar* scales [[buffer(5)]],
    const device uchar* biases [[buffer(6)]], const device uchar* bias [[buffer(7)]],
    device float* tiles [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup Eight<float> xs[kTileRows * kStride];
  threadgroup float p_slice[kTileRows * kSliceStride];
  threadgroup float q_slice[kTileRows * kSliceStride];
  const TilePlace at(thread_index, simdgroup, lane);
  const AllRows rows = rows_of_tile(group.x, params.M);
  const Problem head = head_problem(params.vocabulary, params.heads[0], {w, scales, biases}, bias);
  TileLoader<T, whole, false> p_loader(p_hidden, params.heads[0].K, rows, at);
  DifferenceLoader<T, U, whole> q_loader(p_hidden, q_hidden, params.heads[0].K, rows, at);
  compare<F, F, whole, true>(params, head, head, p_loader, q_loader,
                             TileMemory<T>{(threadgroup Eight<T>*)xs, nullptr, nullptr},
                             TileMemory<float>{xs, nullptr, nullptr}, {p_slice, q_slice}, targets,
                             tiles, rows, group.y, at);
}
