// GatedDeltaNet between its projections for many steps at once, in three launches.
//
// delta_net_keys     q and k of all steps, convolved and normalised, once a key head
// delta_net_factors  what 16 steps of a head do to each other, for all chunks of 16 at once
// delta_net_chunks   a head's state from chunk to chunk, on the matrix units, and the norm
//
// With S the state before a chunk, γ(i, j) the product of the decays of steps j + 1 … i, γ_i that
// from the chunk's start, and rows k_i, q_i, v_i (Yang, Kautz, Hatamizadeh 2024, section 3.3):
//
//   A_ij = β_i γ(i, j) k_i·k_j for j < i,    T = (I + A)⁻¹ diag(β),
//   P_ij = γ(i, j) q_i·k_j for j <= i,       U = T (V − diag(γ_i) K Sᵀ),
//   O = diag(γ_i) Q Sᵀ + P U,                S ← γ_16 S + Uᵀ diag(γ(16, i)) K
//
// Decays are exponentials of sums of the very steps' logs, which are <= 0. Differences of sums from
// the chunk's start would lose what follows a strong decay. I + A is inverted by 8 x 8 blocks: the
// two on the diagonal by forward substitution, the one below them by −T₂₂ A₂₁ T₁₁. Powers of A, as
// in Neumann's series, grow beyond fp32 where keys are alike. A step that is masked, or past the
// end, has β = 0 and no decay: nobody feels it.
#include <metal_simdgroup_matrix>

#include "delta_net.h"

constant constexpr ushort kFactorFloats = sizeof(ChunkFactors) / sizeof(float);

// Where a lane's two elements of an 8 x 8 matrix are: (row, column) and (row, column + 1).
struct MatrixPlace {
  short row, column;

  METAL_FUNC MatrixPlace(ushort lane)
      : row((lane / 4 & 4) + (lane / 2) % 4), column((lane / 4 & 2) * 2 + (lane % 2) * 2) {}
};

METAL_FUNC simdgroup_float8x8 fragment(float first, float second) {
  simdgroup_float8x8 m;
  m.thread_elements()[0] = first;
  m.thread_elements()[1] = second;
  return m;
}

METAL_FUNC simdgroup_float8x8 product(simdgroup_float8x8 a, simdgroup_float8x8 b) {
  simdgroup_float8x8 c;
  simdgroup_multiply(c, a, b);
  return c;
}

METAL_FUNC void add_product(thread simdgroup_float8x8& sum, simdgroup_float8x8 a,
                            simdgroup_float8x8 b) {
  simdgroup_multiply_accumulate(sum, a, b, sum);
}

// ---- keys ---------------------------------------------------------------------------------------

// A SIMD group has a few steps of head y: q's first, then k's.
template <typename T, typename W, short taps, short cols>
[[kernel, max_total_threads_per_threadgroup(32 * kKeyGroups)]] void delta_net_keys(
    constant DeltaNetParams& params [[buffer(0)]], const device T* qkv [[buffer(1)]],
    const device W* conv_weight [[buffer(5)]], const device T* conv_state [[buffer(9)]],
    const device uchar* mask [[buffer(11)]], const device int* lengths [[buffer(12)]],
    device T* conv_out [[buffer(14)]], device float* keys [[buffer(16)]],
    uint3 group [[threadgroup_position_in_grid]],
    ushort thread_index [[thread_index_in_threadgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {
  const Steps<T, W, taps> steps(params, group.z, qkv, conv_state, mask, conv_weight);
  const uint t0 = (group.x * kKeyGroups + simdgroup) * kKeyRun;
  const bool is_q = group.y < params.Hk;
  const Channels channels(params, is_q ? group.y : group.y - params.Hk, 0);
  const Channel channel = is_q ? channels.q() : channels.k();
  float mixed[cols][kKeyRun];
  UNROLL for (short c = 0; c < cols; ++c) {
    const uint i = lane * cols + c;
    UNROLL for (short s = 0; s < kKeyRun; ++s) {
      mixed[c][s] = 0.0f;
    }
    if (i < params.Dk) {
      steps.template mix<kKeyRun>(t0, channel + i, mixed[c]);
    }
  }
  const float scale = is_q ? rsqrt(float(params.Dk)) : 1.0f;
  device float* row = keys + (steps.first + t0) * (2 * params.Hk * params.Dk) + channel.index;
  UNROLL for (short s = 0; s < kKeyRun; ++s) {
    float squares = 0.0f;
    UNROLL for (short c = 0; c < cols; ++c) {
      squares = fma(mixed[c][s], mixed[c][s], squares);
    }
    const float factor = rsqrt(simd_sum(squares) + kSquaresEps) * scale;
    UNROLL for (short c = 0; c < cols; ++c) {
      const uint i = lane * cols + c;
      if (t0 + s < params.T && i < params.Dk) {
        row[i] = mixed[c][s] * factor;
      }
    }
    row += 2 * params.Hk * params.Dk;
  }
  if (group.x == 0) {
    steps.keep(conv_out, lengths, group.z, channel, params.Dk, thread_index, 32 * kKeyGroups);
  }
}

// ---- factors ------------------------------------------------------------------------------------

constant constexpr short kPitch = kChunk + 1;

// The steps of a chunk: rows of q or of k of one head, zeros past the end.
struct ChunkRows {
  const device float* rows;  // of the chunk's first step
  uint stride;
  short count;

  // Rows 8 i … of columns 8 b …, and the same transposed.
  METAL_FUNC simdgroup_float8x8 block(short i, short b, MatrixPlace at) const {
    const short t = 8 * i + at.row;
    const device float* p = rows + t * stride + 8 * b + at.column;
    return fragment(t < count ? p[0] : 0.0f, t < count ? p[1] : 0.0f);
  }
  METAL_FUNC simdgroup_float8x8 transposed(short i, short b, MatrixPlace at) const {
    const short t = 8 * i + at.column;
    const device float* p = rows + t * stride + 8 * b + at.row;
    return fragment(t < count ? p[0] : 0.0f, t + 1 < count ? p[stride] : 0.0f);
  }
};

METAL_FUNC simdgroup_float8x8 load_block(const threadgroup float* m, MatrixPlace at) {
  const threadgroup float* p = m + at.row * kPitch + at.column;
  return fragment(p[0], p[1]);
}

// A SIMD group has chunk x of key head y, and all value heads that this serves.
template <short key_blocks>
[[kernel, max_total_threads_per_threadgroup(32)]] void delta_net_factors(
    constant DeltaNetParams& params [[buffer(0)]], const device float* a [[buffer(3)]],
    const device float* b [[buffer(4)]], const device uchar* A_log [[buffer(6)]],
    const device uchar* dt_bias [[buffer(7)]], const device uchar* mask [[buffer(11)]],
    const device float* keys [[buffer(16)]], device ChunkFactors* factors [[buffer(17)]],
    uint3 group [[threadgroup_position_in_grid]], ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup float kk[kChunk * kPitch], qk[kChunk * kPitch], system[kChunk * kPitch];
  threadgroup float inverse[2 * 8 * kPitch];  // the blocks on the diagonal
  threadgroup float logs[kChunk], betas[kChunk];
  const MatrixPlace at(lane);
  const uint t0 = group.x * kChunk, stride = 2 * params.Hk * params.Dk;
  const size_t first = size_t(group.z) * params.T + t0;
  const short count = min(uint(kChunk), params.T - t0);
  const ChunkRows q{keys + first * stride + group.y * params.Dk, stride, count};
  const ChunkRows k{q.rows + params.Hk * params.Dk, stride, count};

  simdgroup_float8x8 sums[6];  // blocks 00, 10, 11 of K Kᵀ, then of Q Kᵀ
  UNROLL for (short i = 0; i < 6; ++i) {
    sums[i] = fragment(0.0f, 0.0f);
  }
  for (short block = 0; block < key_blocks; ++block) {
    const simdgroup_float8x8 k0 = k.transposed(0, block, at), k1 = k.transposed(1, block, at);
    UNROLL for (short of_q = 0; of_q < 2; ++of_q) {
      const simdgroup_float8x8 r0 = of_q ? q.block(0, block, at) : k.block(0, block, at);
      const simdgroup_float8x8 r1 = of_q ? q.block(1, block, at) : k.block(1, block, at);
      add_product(sums[3 * of_q], r0, k0);
      add_product(sums[3 * of_q + 1], r1, k0);
      add_product(sums[3 * of_q + 2], r1, k1);
    }
  }
  UNROLL for (short i = 0; i < 6; ++i) {
    const short row = i % 3 == 0 ? 0 : 8, column = i % 3 == 2 ? 8 : 0;
    threadgroup float* to = (i < 3 ? kk : qk) + (row + at.row) * kPitch + column + at.column;
    to[0] = sums[i].thread_elements()[0];
    to[1] = sums[i].thread_elements()[1];
  }

  const GateWeights weights{{A_log, params.A_log}, {dt_bias, params.dt_bias}};
  const short j = lane % kChunk;
  const bool upper = lane >= kChunk;
  for (uint hv = group.y * params.share; hv < (group.y + 1) * params.share; ++hv) {
    device ChunkFactors& out =
        factors[(size_t(group.z) * params.Hv + hv) * ((params.T + kChunk - 1) / kChunk) + group.x];
    if (!upper) {
      const bool on = j < count && (!(params.present & kMask) || mask[first + j]);
      const size_t i = (first + j) * params.layout.gate_step;
      const uint own = hv - group.y * params.share;
      const size_t of_a = i + place_of(params.layout.a, group.y, own, 1);
      const size_t of_b = i + place_of(params.layout.b, group.y, own, 1);
      logs[j] = on ? weights.log_decay(a[of_a], hv) : 0.0f;
      betas[j] = on ? sigmoid(b[of_b]) : 0.0f;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    // Lane j makes column j of A, lane 16 + j that of P.
    float since = 0.0f, until = 0.0f;  // logs of the steps after j, and up to j
    for (short i = 0; i < kChunk; ++i) {
      if (i > j) {
        since += logs[i];
      } else {
        until += logs[i];
      }
      const float decay = exp(since);
      if (!upper) {
        system[i * kPitch + j] = i > j ? betas[i] * decay * kk[i * kPitch + j] : 0.0f;
      } else if (i >= 8 || j < 8) {
        out.P[i / 8 + j / 8][i % 8 * 8 + j % 8] = i >= j ? decay * qk[i * kPitch + j] : 0.0f;
      }
    }
    if (!upper) {
      out.start[j] = exp(until);
      out.end[j] = exp(since);
    }
    if (lane == kChunk - 1) {
      out.decay = expm1_negative(until);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (!upper) {
      const threadgroup float* rows = system + j / 8 * (8 * kPitch + 8);
      float x[8];
      UNROLL for (short i = 0; i < 8; ++i) {
        x[i] = i == j % 8 ? 1.0f : 0.0f;
        UNROLL for (short m = 0; m < i; ++m) {
          x[i] = fma(-rows[i * kPitch + m], x[m], x[i]);
        }
        inverse[(j / 8 * 8 + i) * kPitch + j % 8] = x[i];
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const simdgroup_float8x8 t00 = load_block(inverse, at);
    const simdgroup_float8x8 t11 = load_block(inverse + 8 * kPitch, at);
    const simdgroup_float8x8 t10 = product(t11, product(load_block(system + 8 * kPitch, at), t00));
    UNROLL for (short e = 0; e < 2; ++e) {
      const short i = at.row * 8 + at.column + e;
      const float left = betas[at.column + e], right = betas[8 + at.column + e];
      out.T[0][i] = t00.thread_elements()[e] * left;
      out.T[1][i] = -t10.thread_elements()[e] * left;
      out.T[2][i] = t11.thread_elements()[e] * right;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// ---- the state ----------------------------------------------------------------------------------

// A threadgroup has a value head of a row of the batch. SIMD group s has columns 8 s … of Sᵀ, in
// registers, as blocks of 8 keys by 8 values; all share q and k of the chunk, and the values, which
// become outputs for the norm.
template <typename T, typename W, short taps, short key_blocks, short value_blocks>
[[kernel, max_total_threads_per_threadgroup(32 * value_blocks)]] void delta_net_chunks(
    constant DeltaNetParams& params [[buffer(0)]], const device T* qkv [[buffer(1)]],
    const device T* z [[buffer(2)]], const device W* conv_weight [[buffer(5)]],
    const device uchar* norm_weight [[buffer(8)]], const device T* conv_state [[buffer(9)]],
    const device float* state [[buffer(10)]], const device uchar* mask [[buffer(11)]],
    const device int* lengths [[buffer(12)]], device T* y [[buffer(13)]],
    device T* conv_out [[buffer(14)]], device float* state_out [[buffer(15)]],
    const device float* keys [[buffer(16)]], const device ChunkFactors* factors [[buffer(17)]],
    uint3 group [[threadgroup_position_in_grid]],
    ushort thread_index [[thread_index_in_threadgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {
  constexpr short Dk = 8 * key_blocks, Dv = 8 * value_blocks, threads = 32 * value_blocks;
  constexpr short key_pitch = Dk + 4, value_pitch = Dv + 4;  // rows begin in different banks
  threadgroup float4 q_rows[kChunk * key_pitch / 4], k_rows[kChunk * key_pitch / 4];
  threadgroup float* q = (threadgroup float*)q_rows;
  threadgroup float* k = (threadgroup float*)k_rows;
  threadgroup float values[kChunk * value_pitch];
  threadgroup ChunkFactors f;
  const uint hk = group.y, hv = hk * params.share + group.x, batch = group.z;
  const Channels channels(params, hk, hv);
  const uint first_q = channels.q().index, first_k = channels.k().index;
  const Channel first_v = channels.v();
  const Steps<T, W, taps> steps(params, batch, qkv, conv_state, mask, conv_weight);
  const MatrixPlace at(lane);
  const uint stride = 2 * params.Hk * Dk, chunks = (params.T + kChunk - 1) / kChunk;
  // A thread's values: four steps of one channel.
  constexpr short value_run = kChunk * Dv / threads;
  const ushort value_column = thread_index % ushort(Dv);
  const ushort value_row = thread_index / ushort(Dv) * value_run;
  const size_t head = size_t(batch) * params.Hv + hv;
  const uint z_place = place_of(params.layout.z, hk, group.x, Dv);

  simdgroup_float8x8 S[key_blocks];
  const size_t own = (head * Dv + 8 * simdgroup + at.column) * Dk + at.row;
  const bool resumed = params.present & kRecurrentState;
  UNROLL for (short b = 0; b < key_blocks; ++b) {
    const device float* p = state + own + 8 * b;
    S[b] = fragment(resumed ? p[0] : 0.0f, resumed ? p[Dk] : 0.0f);
  }
  for (uint chunk = 0; chunk < chunks; ++chunk) {
    const uint t0 = chunk * kChunk;
    const short count = min(uint(kChunk), params.T - t0);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (ushort i = thread_index; i < kChunk * Dk / 4; i += threads) {
      const ushort row = ushort(i / ushort(Dk / 4)), column = i % ushort(Dk / 4) * 4;
      const device float* from = keys + (steps.first + t0 + row) * stride + column;
      float4 q4 = float4(0.0f), k4 = float4(0.0f);
      if (row < count) {
        q4 = *(const device float4*)(from + first_q);
        k4 = *(const device float4*)(from + first_k);
      }
      q_rows[(row * key_pitch + column) / 4] = q4;
      k_rows[(row * key_pitch + column) / 4] = k4;
    }
    float mixed[value_run];
    steps.template mix<value_run>(t0 + value_row, first_v + value_column, mixed);
    UNROLL for (short i = 0; i < value_run; ++i) {
      values[(value_row + i) * value_pitch + value_column] = mixed[i];
    }
    const device float* from = (const device float*)(factors + head * chunks + chunk);
    for (ushort i = thread_index; i < kFactorFloats; i += threads) {
      ((threadgroup float*)&f)[i] = from[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    simdgroup_float8x8 ks[2], qs[2], u[2];
    UNROLL for (short i = 0; i < 2; ++i) {
      ks[i] = qs[i] = fragment(0.0f, 0.0f);
    }
    const short place = at.row * key_pitch + at.column;
    UNROLL for (short b = 0; b < key_blocks; ++b) {
      UNROLL for (short i = 0; i < 2; ++i) {
        const short from = place + 8 * i * key_pitch + 8 * b;
        add_product(ks[i], fragment(k[from], k[from + 1]), S[b]);
        add_product(qs[i], fragment(q[from], q[from + 1]), S[b]);
      }
    }
    threadgroup float* outputs = values + at.row * value_pitch + 8 * simdgroup + at.column;
    UNROLL for (short i = 0; i < 2; ++i) {
      const float start = f.start[8 * i + at.row];
      const threadgroup float* v = outputs + 8 * i * value_pitch;
      UNROLL for (short e = 0; e < 2; ++e) {
        ks[i].thread_elements()[e] = fma(-start, ks[i].thread_elements()[e], v[e]);
        qs[i].thread_elements()[e] *= start;
      }
    }
    const short i8 = at.row * 8 + at.column;
    u[0] = product(fragment(f.T[0][i8], f.T[0][i8 + 1]), ks[0]);
    u[1] = product(fragment(f.T[1][i8], f.T[1][i8 + 1]), ks[0]);
    add_product(u[1], fragment(f.T[2][i8], f.T[2][i8 + 1]), ks[1]);
    add_product(qs[0], fragment(f.P[0][i8], f.P[0][i8 + 1]), u[0]);
    add_product(qs[1], fragment(f.P[1][i8], f.P[1][i8 + 1]), u[0]);
    add_product(qs[1], fragment(f.P[2][i8], f.P[2][i8 + 1]), u[1]);
    UNROLL for (short i = 0; i < 2; ++i) {
      const float end = f.end[8 * i + at.row];
      UNROLL for (short e = 0; e < 2; ++e) {
        outputs[8 * i * value_pitch + e] = qs[i].thread_elements()[e];
        u[i].thread_elements()[e] *= end;
      }
    }
    UNROLL for (short b = 0; b < key_blocks; ++b) {
      UNROLL for (short e = 0; e < 2; ++e) {
        const float s = S[b].thread_elements()[e];
        S[b].thread_elements()[e] = fma(f.decay, s, s);
      }
      UNROLL for (short i = 0; i < 2; ++i) {
        const threadgroup float* from = k + (8 * i + at.column) * key_pitch + 8 * b + at.row;
        add_product(S[b], fragment(from[0], from[key_pitch]), u[i]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (short row = simdgroup; row < count; row += value_blocks) {
      const uint t = t0 + row;
      const size_t step = steps.first + t;
      gated_norm(values + row * value_pitch, z + step * params.layout.z_step + z_place,
                 {norm_weight, params.norm_weight}, Dv, params.eps, steps.seen(t),
                 y + (step * params.Hv + hv) * Dv, lane);
    }
  }
  UNROLL for (short b = 0; b < key_blocks; ++b) {
    device float* p = state_out + own + 8 * b;
    p[0] = S[b].thread_elements()[0];
    p[Dk] = S[b].thread_elements()[1];
  }
  steps.keep(conv_out, lengths, batch, first_v, Dv, thread_index, threads);
}
