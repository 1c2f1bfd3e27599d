// GatedDeltaNet between its projections in one launch, step by step: for decoding, for checking
// drafts, and for heads that delta_net_chunks.metal does not take.
//
// A threadgroup of 32 SIMD groups has one value head of one row of the batch: the norm needs the
// whole head. SIMD group s keeps rows s · rows … of the state in registers, lane l of it columns
// l · cols …, from the first step to the last, so the state is read once and written once, by the
// thread that read it: it may be updated in place.
//
// Steps come in tiles of up to 8. SIMD group s makes q and k of the tile's step s and its gates,
// SIMD group 8 + s the values; all then run through the tile's steps,
//
//   u = S k, w = S q,   δ = β (v − g u),   o = g w + δ (k·q),   S ← g S + δ kᵀ,
//
// which is decay, correct, read with both products taken from the old state at once; and SIMD group
// s norms step s. g itself is never formed: near 1 it would round by 3e-8, and a long memory would
// forget too much or too little at every step. g − 1 keeps its digits, and g S = S + (g − 1) S is
// one FMA. Value heads that share a key head each make its q and k. The state of the convolution is
// written anew, q's and k's by the first of those value heads.
#include "delta_net.h"

#include "lane_sums.h"

// A lane's columns of a row.
template <short n>
struct alignas(n % 4 == 0   ? 16
               : n % 2 == 0 ? 8
                            : 4) Slice {
  float v[n];
};

// What a step has for all rows of the state.
struct Gates {
  float decay;  // g − 1
  float beta, kq;
};

// A lane's part of the state of one head. `whole`: all 32 · rows by 32 · cols are there.
template <short rows, short cols, bool whole>
struct State {
  Slice<cols> s[rows];
  uint row, column, Dv, Dk;

  METAL_FUNC State(ushort simdgroup, ushort lane, uint Dv, uint Dk)
      : row(simdgroup * rows), column(lane * cols), Dv(Dv), Dk(Dk) {}

  METAL_FUNC void load(const device float* state, bool present) {
    UNROLL for (short r = 0; r < rows; ++r) {
      const device float* from = state + (row + r) * Dk + column;
      UNROLL for (short c = 0; c < cols; ++c) {
        s[r].v[c] = 0.0f;
      }
      if (present && whole) {
        s[r] = *(const device Slice<cols>*)from;
      } else if (present && row + r < Dv) {
        UNROLL for (short c = 0; c < cols; ++c) {
          if (column + c < Dk) {
            s[r].v[c] = from[c];
          }
        }
      }
    }
  }

  METAL_FUNC void store(device float* state) const {
    UNROLL for (short r = 0; r < rows; ++r) {
      device float* to = state + (row + r) * Dk + column;
      if (whole) {
        *(device Slice<cols>*)to = s[r];
      } else if (row + r < Dv) {
        UNROLL for (short c = 0; c < cols; ++c) {
          if (column + c < Dk) {
            to[c] = s[r].v[c];
          }
        }
      }
    }
  }

  // One step of the rule; `values` are those of the SIMD group's rows, and become outputs.
  METAL_FUNC void step(Slice<cols> q, Slice<cols> k, Gates gates, threadgroup float* values,
                       ushort lane) {
    float sums[2 * rows];  // u of each row, then w
    UNROLL for (short r = 0; r < rows; ++r) {
      sums[r] = sums[rows + r] = 0.0f;
      UNROLL for (short c = 0; c < cols; ++c) {
        sums[r] = fma(s[r].v[c], k.v[c], sums[r]);
        sums[rows + r] = fma(s[r].v[c], q.v[c], sums[rows + r]);
      }
    }
    // First the lower lanes get the sums u of all rows, the upper ones w.
    LaneSums<2 * rows, 16>::add(sums, lane);
    using Rows = LaneSums<rows, 8>;
    const bool owner = lane < 16 && Rows::owner(lane);
    threadgroup float* own = values + Rows::slot(lane);
    float delta[Rows::count];
    UNROLL for (short i = 0; i < Rows::count; ++i) {
      const float w = simd_shuffle_xor(sums[i], 16);
      delta[i] = 0.0f;
      if (owner) {
        delta[i] = gates.beta * (own[i] - fma(gates.decay, sums[i], sums[i]));
        own[i] = fma(delta[i], gates.kq, fma(gates.decay, w, w));
      }
    }
    UNROLL for (short r = 0; r < rows; ++r) {
      const float d = simd_broadcast(delta[r % Rows::count], Rows::lane(r));
      UNROLL for (short c = 0; c < cols; ++c) {
        s[r].v[c] = fma(d, k.v[c], fma(gates.decay, s[r].v[c], s[r].v[c]));
      }
    }
  }
};

// A lane's columns of q and k at one step, normalised.
template <short cols, typename T, typename W, short taps>
METAL_FUNC void make_keys(Steps<T, W, taps> steps, uint t, Channels channel, uint Dk, ushort lane,
                          thread Slice<cols>& q, thread Slice<cols>& k) {
  const Channel first_q = channel.q(), first_k = channel.k();
  float qq = 0.0f, kk = 0.0f;
  UNROLL for (short c = 0; c < cols; ++c) {
    const uint i = lane * cols + c;
    q.v[c] = k.v[c] = 0.0f;
    if (i < Dk) {
      steps.template mix<1>(t, first_q + i, &q.v[c]);
      steps.template mix<1>(t, first_k + i, &k.v[c]);
    }
    qq = fma(q.v[c], q.v[c], qq);
    kk = fma(k.v[c], k.v[c], kk);
  }
  const float q_factor = rsqrt(simd_sum(qq) + kSquaresEps) * rsqrt(float(Dk));
  const float k_factor = rsqrt(simd_sum(kk) + kSquaresEps);
  UNROLL for (short c = 0; c < cols; ++c) {
    q.v[c] *= q_factor;
    k.v[c] *= k_factor;
  }
}

// The same, made before.
template <short cols>
METAL_FUNC void load_keys(const device float* keys, Channels channel, uint Dk, ushort lane,
                          thread Slice<cols>& q, thread Slice<cols>& k) {
  const uint first_q = channel.q().index, first_k = channel.k().index;
  UNROLL for (short c = 0; c < cols; ++c) {
    const uint i = lane * cols + c;
    q.v[c] = i < Dk ? keys[first_q + i] : 0.0f;
    k.v[c] = i < Dk ? keys[first_k + i] : 0.0f;
  }
}

template <short cols>
METAL_FUNC float slice_dot(Slice<cols> a, Slice<cols> b) {
  float sum = 0.0f;
  UNROLL for (short c = 0; c < cols; ++c) {
    sum = fma(a.v[c], b.v[c], sum);
  }
  return simd_sum(sum);
}

// `made`: q and k are those of delta_net_keys.
template <typename T, typename W, short taps, short rows, short cols, bool whole, short tile,
          bool keep_steps, bool made>
[[kernel, max_total_threads_per_threadgroup(kDeltaThreads)]] void delta_net(
    constant DeltaNetParams& params [[buffer(0)]], const device T* qkv [[buffer(1)]],
    const device T* z [[buffer(2)]], const device float* a [[buffer(3)]],
    const device float* b [[buffer(4)]], const device W* conv_weight [[buffer(5)]],
    const device uchar* A_log [[buffer(6)]], const device uchar* dt_bias [[buffer(7)]],
    const device uchar* norm_weight [[buffer(8)]], const device T* conv_state [[buffer(9)]],
    const device float* state [[buffer(10)]], const device uchar* mask [[buffer(11)]],
    const device int* lengths [[buffer(12)]], device T* y [[buffer(13)]],
    device T* conv_out [[buffer(14)]], device float* state_out [[buffer(15)]],
    const device float* keys [[buffer(16)]], uint3 group [[threadgroup_position_in_grid]],
    ushort thread_index [[thread_index_in_threadgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup Slice<cols> q[tile * 32], k[tile * 32];
  threadgroup float values[tile * 32 * rows];  // then outputs
  threadgroup Gates gates[tile];
  const uint hk = group.y, hv = hk * params.share + group.x, batch = group.z, T_ = params.T;
  const Channels channel(params, hk, hv);
  const Steps<T, W, taps> steps(params, batch, qkv, conv_state, mask, conv_weight);
  const GateWeights weights{{A_log, params.A_log}, {dt_bias, params.dt_bias}};
  const uint per_head = params.Dv * params.Dk;

  State<rows, cols, whole> head(simdgroup, lane, params.Dv, params.Dk);
  head.load(state + (size_t(batch) * params.Hv + hv) * per_head, params.present & kRecurrentState);
  for (uint t0 = 0; t0 < T_; t0 += tile) {
    const ushort count = min(uint(tile), T_ - t0);
    if (t0 != 0) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (simdgroup < count) {
      const uint t = t0 + simdgroup;
      Slice<cols> own_q, own_k;
      if (made) {
        const size_t row = (steps.first + t) * (2 * params.Hk * params.Dk);
        load_keys(keys + row, channel, params.Dk, lane, own_q, own_k);
      } else {
        make_keys(steps, t, channel, params.Dk, lane, own_q, own_k);
      }
      q[simdgroup * 32 + lane] = own_q;
      k[simdgroup * 32 + lane] = own_k;
      const float kq = slice_dot(own_k, own_q);
      if (lane == 0) {
        const size_t i = (steps.first + t) * params.layout.gate_step;
        const size_t of_a = i + place_of(params.layout.a, hk, group.x, 1);
        const size_t of_b = i + place_of(params.layout.b, hk, group.x, 1);
        gates[simdgroup] = {expm1_negative(weights.log_decay(a[of_a], hv)), sigmoid(b[of_b]), kq};
      }
    } else if (simdgroup >= tile && simdgroup < tile + count) {
      const ushort step = simdgroup - tile;
      const Channel first = channel.v();
      UNROLL for (short r = 0; r < rows; ++r) {
        const uint i = 32 * r + lane;
        float v = 0.0f;
        if (i < params.Dv) {
          steps.template mix<1>(t0 + step, first + i, &v);
        }
        values[step * 32 * rows + i] = v;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (ushort step = 0; step < count; ++step) {
      const uint t = t0 + step;
      if (steps.seen(t)) {
        head.step(q[step * 32 + lane], k[step * 32 + lane], gates[step],
                  values + (step * 32 + simdgroup) * rows, lane);
      }
      if (keep_steps) {
        head.store(state_out + ((steps.first + t) * params.Hv + hv) * per_head);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup < count) {
      const uint t = t0 + simdgroup;
      const size_t step = steps.first + t;
      const uint z_place = place_of(params.layout.z, hk, group.x, params.Dv);
      gated_norm(values + simdgroup * 32 * rows, z + step * params.layout.z_step + z_place,
                 {norm_weight, params.norm_weight}, params.Dv, params.eps, steps.seen(t),
                 y + (step * params.Hv + hv) * params.Dv, lane);
    }
  }
  if (!keep_steps) {
    head.store(state_out + (size_t(batch) * params.Hv + hv) * per_head);
  }

  steps.keep(conv_out, lengths, batch, channel.v(), params.Dv, thread_index, kDeltaThreads);
  if (!made && group.x == 0) {
    steps.keep(conv_out, lengths, batch, channel.q(), params.Dk, thread_index, kDeltaThreads);
    steps.keep(conv_out, lengths, batch, channel.k(), params.Dk, thread_index, kDeltaThreads);
  }
}
