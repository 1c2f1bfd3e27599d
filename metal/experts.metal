// What a mixture of experts does around its products: choosing experts, sorting rows by expert,
// and the weighted sum of what they gave.
#include <metal_stdlib>

#include "elements.h"
#include "params.h"

using namespace metal;

constant constexpr uint kNobody = 0xffffffff;

// The `slots` largest of a token's router logits, largest first, the earlier of equals first, and
// their softmax: over all experts, or with `normalise` over the chosen ones. NaN is never chosen.
//
// One simdgroup a token; lane l has the logits of experts l, l + 32, …
template <typename T, short per_lane>
[[kernel]] void route(constant RouteParams& params [[buffer(0)]],
                      const device T* logits [[buffer(1)]], device uint* indices [[buffer(2)]],
                      device float* scores [[buffer(3)]],
                      uint token [[threadgroup_position_in_grid]],
                      uint lane [[thread_index_in_simdgroup]]) {
  const uint experts = params.experts;
  float v[per_lane];
  float top = -INFINITY;
  UNROLL for (short i = 0; i < per_lane; ++i) {
    const uint e = lane + 32 * i;
    v[i] = e < experts ? to_float(logits[size_t(token) * experts + e]) : -INFINITY;
    top = max(top, v[i]);
  }
  top = simd_max(top);
  float sum = 0.0f;
  UNROLL for (short i = 0; i < per_lane; ++i) {
    sum += exp(v[i] - top);
  }
  sum = simd_sum(sum);

  // Lane s keeps choice s, of 32 at most.
  uint chosen = 0;
  float score = 0.0f;
  uint taken = 0;  // bit i: expert lane + 32 i
  for (uint s = 0; s < params.slots; ++s) {
    float best = -INFINITY;
    uint at = kNobody;
    UNROLL for (short i = 0; i < per_lane; ++i) {
      const uint e = lane + 32 * i;
      const bool open = (taken >> i & 1) == 0 && e < experts && !isnan(v[i]);
      if (open && (v[i] > best || at == kNobody)) {
        best = v[i];
        at = e;
      }
    }
    const float largest = simd_max(best);
    const uint expert = simd_min(best == largest ? at : kNobody);
    if (expert == at && at != kNobody) {
      taken |= 1u << at / 32;
    }
    if (s == lane) {
      chosen = expert;
      score = exp(largest - top);
    }
  }
  const float total = params.normalise ? simd_sum(score) : sum;
  if (lane < params.slots) {
    indices[token * params.slots + lane] = chosen;
    scores[token * params.slots + lane] = score / total;
  }
}

// Exclusive prefix sum over a threadgroup of 32 simdgroups. All of its threads call it.
METAL_FUNC uint exclusive_sum(uint v, threadgroup uint* sums, ushort simdgroup, ushort lane) {
  const uint before = simd_prefix_exclusive_sum(v);
  if (lane == 31) {
    sums[simdgroup] = before + v;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint earlier = simd_sum(lane < simdgroup ? sums[lane] : 0);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return earlier + before;
}

// A counting sort of rows by expert, in one threadgroup of 1024: thread e serves expert e, all
// serve the rows. Rows of one expert come in any order; no result depends on it.
[[kernel, max_total_threads_per_threadgroup(1024)]] void sort_rows(
    constant SortRowsParams& params [[buffer(0)]], const device uint* indices [[buffer(1)]],
    device uint* order [[buffer(2)]], device RowTile* tiles [[buffer(3)]],
    device uint* num_tiles [[buffer(4)]], uint t [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup atomic_uint count[1024];
  threadgroup uint sums[32];
  const uint rows = params.blocks * params.M;
  atomic_store_explicit(&count[t], 0, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = t; i < rows; i += 1024) {
    const uint expert = min(indices[i / params.M], params.experts);
    atomic_fetch_add_explicit(&count[expert], 1, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint mine = atomic_load_explicit(&count[t], memory_order_relaxed);
  const uint first = exclusive_sum(mine, sums, simdgroup, lane);
  const uint my_tiles = (mine + kTileRows - 1) / kTileRows;
  const uint first_tile = exclusive_sum(my_tiles, sums, simdgroup, lane);
  for (uint i = 0; i < my_tiles; ++i) {
    const uint done = i * kTileRows;
    tiles[first_tile + i] = RowTile{t, first + done, min(mine - done, uint(kTileRows))};
  }
  if (t == 1023) {
    *num_tiles = first_tile + my_tiles;
  }
  // From here on the place of the expert's next row.
  atomic_store_explicit(&count[t], first, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = t; i < rows; i += 1024) {
    const uint expert = min(indices[i / params.M], params.experts);
    order[atomic_fetch_add_explicit(&count[expert], 1, memory_order_relaxed)] = i;
  }
}

// y = Σ over slots of score · product, slot after slot: products [tokens, slots, values] to
// y [tokens, values].
[[kernel]] void mix(constant MixParams& params [[buffer(0)]],
                    const device float* products [[buffer(1)]],
                    const device float* scores [[buffer(2)]], device uchar* y [[buffer(3)]],
                    uint2 at [[thread_position_in_grid]]) {
  if (at.x >= params.values) {
    return;
  }
  float sum = 0.0f;
  for (uint s = 0; s < params.slots; ++s) {
    const size_t slot = size_t(at.y) * params.slots + s;
    sum = fma(scores[slot], products[slot * params.values + at.x], sum);
  }
  store_element(y, params.y, size_t(at.y) * params.values + at.x, sum);
}
